"""Perigee against transformers on SmolLM2-135M: tokens, logits, greedy text, and the verdicts of made-up needles.

    .venv/bin/python tests/tools/smollm2_check.py build/cpu/bin FOLDER      of tools/data/smollm2.py
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch
import transformers

LOGITS = 1e-4  # relative: ||a - b|| / ||b||
GREEDY = 200
NEEDLES = 24
PROMPTS = ["The first law of thermodynamics says that", "def fibonacci(n):\n    ", "Once upon a time, in a village by the sea,"]
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


def fail(message):
    sys.exit(f"smollm2_check: {message}")


def run(binaries, *arguments):
    done = subprocess.run([binaries / "perigee" if arguments[0] == "generate" else binaries / arguments[0],
                           *map(str, arguments[0 if arguments[0] == "generate" else 1:])], capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{arguments}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def logits_of(binaries, folder, ids, scratch):
    with h5py.File(scratch / "in.h5", "w") as file:
        file["ids"] = np.int32(ids)
        file["targets"] = np.int32(ids)
        file["weights"] = np.ones(len(ids), np.float32)
    run(binaries, "probe", "model", folder, scratch / "in.h5", scratch / "out.h5", "kind=full")
    with h5py.File(scratch / "out.h5") as file:
        return file["logits"][:]


def check_logits(binaries, folder, model, tokenizer, scratch):
    ids = tokenizer((FILLER + " ".join(PROMPTS)) * 4)["input_ids"][:512]
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].numpy()
    mine = logits_of(binaries, folder, ids, scratch)
    error = float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs))
    print(f"logits of {len(ids)} tokens: relative error {error:.2g}, largest difference {np.abs(mine - theirs).max():.2g}")
    if not error <= LOGITS:
        fail(f"logits differ by {error:.3g}")


def check_greedy(binaries, folder, model, tokenizer, scratch):
    (scratch / "prompts.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS))
    (scratch / "config.yaml").write_text(f"output_dir: {scratch}/run\nmodel: {{init_from: {folder}}}\n"
                                         "attention: {kind: full}\nchat: {template: none}\ndata: {mock_data: true}\ndevice: cpu\nthreads: 1\n")
    run(binaries, "generate", scratch / "config.yaml", "generate.temperature=0", f"generate.max_tokens={GREEDY}",
        "--input", scratch / "prompts.jsonl", "--output", scratch / "answers.jsonl")
    answers = [json.loads(line) for line in (scratch / "answers.jsonl").read_text().splitlines()]
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        out = model.generate(ids, do_sample=False, max_new_tokens=GREEDY, repetition_penalty=1.0)[0, ids.shape[1]:]
        theirs = tokenizer.decode(out, skip_special_tokens=True)
        mine = answer["text"]
        if mine != theirs:
            at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
            fail(f"greedy text after {prompt!r} differs at character {at}: {mine[at:at + 40]!r}, {theirs[at:at + 40]!r}")
    print(f"greedy text: {len(PROMPTS)} x {GREEDY} tokens, all equal")


def check_needles(binaries, folder, model, tokenizer, scratch):
    """Forced decoding: an item passes when every answer token is the likeliest after the right ones before it."""
    rng, passed, agree = np.random.default_rng(1), 0, 0
    for item in range(NEEDLES):
        number = str(rng.integers(1000, 9999))
        depth, length = rng.random(), int(rng.integers(8, 60))
        before = FILLER * int(length * depth)
        text = before + f"The pass key is {number}. Remember it. " + FILLER * (length - int(length * depth))
        prompt = tokenizer(text + "What is the pass key? The pass key is")["input_ids"]
        answer = tokenizer(" " + number)["input_ids"]
        ids = prompt + answer
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0].argmax(-1)[len(prompt) - 1:-1].tolist() == answer
        mine = logits_of(binaries, folder, ids, scratch).argmax(-1)[len(prompt) - 1:-1].tolist() == answer
        passed += theirs
        agree += mine == theirs
    print(f"needles: {agree} of {NEEDLES} verdicts agree; {passed} pass")
    if agree != NEEDLES:
        fail("verdicts of needles differ")


def main():
    binaries, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory() as scratch:
        for check in (check_logits, check_greedy, check_needles):
            check(binaries, folder, model, tokenizer, pathlib.Path(scratch))


if __name__ == "__main__":
    main()
