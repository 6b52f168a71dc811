"""Perigee against transformers on SmolLM2-135M: tokens, logits, greedy text, and the verdicts on items of suites.

    .venv/bin/python tests/tools/smollm2_check.py build/cpu/bin FOLDER      of tools/data/smollm2.py
    ... FOLDER --only suites --lengths 2048 4096 8192 --items 20            items at the lengths that the docs name
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

LOGITS = 1e-4  # relative: ||a - b|| / ||b||
GREEDY = 200
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
    import h5py  # which the suites do without
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


def verdict(model, prompt, answer):
    """Forced decoding: every answer token is the likeliest after the right ones before it."""
    ids = torch.tensor([prompt + answer[:-1]], device=model.device)
    with torch.no_grad():
        states = model.model(ids).last_hidden_state[0, len(prompt) - 1:]
        return model.lm_head(states).argmax(-1).tolist() == answer


def check_suites(binaries, folder, model, scratch, args):
    """Of the tasks at which the model is neither hopeless nor perfect, almost all verdicts agree."""
    (scratch / "suites.yaml").write_text(
        f"output_dir: {scratch}/suites\nmodel: {{init_from: {folder}}}\nattention: {{kind: full}}\n"
        f"chat: {{template: none}}\ndata: {{mock_data: true, tokenizer: {folder}, sequence_length: {max(args.lengths)}}}\n"
        f"device: {args.device}\nwatchdog: {{enabled: false}}\n")
    run(binaries, "perigee", "eval", scratch / "suites.yaml", "--suite", args.suites, f"eval.suites.lengths={args.lengths}",
        f"eval.suites.items={args.items}", f"eval.suites.depths={args.depths}", "eval.suites.tokens=true")
    records = [json.loads(line) for line in (scratch / "suites" / "suites.jsonl").read_text().splitlines()]
    cells = collections.defaultdict(lambda: np.zeros(3, int))  # items, passed in transformers, agreed
    for record in records:
        theirs = verdict(model, record["prompt"], record["answer"])
        cells[record["suite"], record["task"], record["length"]] += (1, theirs, theirs == record["passed"])
    items = agreed = 0
    for (suite, task, length), (count, passed, same) in cells.items():
        counts = 0.2 <= passed / count <= 0.95
        print(f"{suite:7}{task:10}{length:7}: {passed} of {count} pass in transformers, {same} verdicts agree"
              f"{'' if counts else ' (does not count)'}")
        if counts:
            items, agreed = items + count, agreed + same
    print(f"suites: {agreed} of {items} verdicts agree on tasks between 20 and 95%; "
          f"{sum(c[2] for c in cells.values())} of {len(records)} on all")
    if items < 20 or agreed < 0.99 * items:
        fail("verdicts on items differ, or too few count")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", choices=["logits", "greedy", "suites"], nargs="+", default=["logits", "greedy", "suites"])
    parser.add_argument("--suites", default="needle,ruler")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--items", type=int, default=5, help="per task, length and depth")
    parser.add_argument("--depths", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of perigee, in the suites")
    parser.add_argument("--torch-device", choices=["cpu", "cuda"], default="cpu", help="of transformers, in the suites")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        if "logits" in args.only:
            check_logits(args.binaries, args.folder, model, tokenizer, scratch)
        if "greedy" in args.only:
            check_greedy(args.binaries, args.folder, model, tokenizer, scratch)
        if "suites" in args.only:
            check_suites(args.binaries, args.folder, model.to(args.torch_device), scratch, args)


if __name__ == "__main__":
    main()
