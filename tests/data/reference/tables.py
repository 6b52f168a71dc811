"""The same documents as JSONL, JSONL.zst and Parquet: `perigee tokenize` must write the same files, at nearly the same speed.

tables.py TOKENIZE FOLDER: MEGABYTES of the environment says how much text.
"""
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import tokenizers

MEGABYTES = int(os.environ.get("MEGABYTES", "60"))
ROUNDS = 3
SLOWEST = 0.9
SOURCE = pathlib.Path(__file__).resolve().parents[3]
CALLS = '''{% for m in messages %}{{ m.role + ': ' + (m.tool_calls[0] | tojson if m.content is none else m.content) }} END
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}'''


def make_tokenizer(folder):
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4000, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator((path.read_text() for path in sorted(SOURCE.glob("docs/*.md"))), trainer)
    core.add_special_tokens(["<|end|>"])
    folder.mkdir(exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')


def documents():
    rng, size = random.Random(7), 0
    words = re.findall(r"\S+\s*", "".join(path.read_text() for path in sorted(SOURCE.glob("docs/*.md"))))
    while size < MEGABYTES << 20:
        text = "".join(rng.choices(words, k=rng.choice([0, 3, 40, 400, 4000])))
        size += len(text)
        yield rng.choice([text, text, text, "\u6ce8\u610f\n" + text])


def write_all(folder):
    texts = list(documents())
    with open(folder / "text.jsonl", "w") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": number, "text": text, "meta": {"a": [1, None]}}, ensure_ascii=False) + "\n")
    subprocess.run(["zstd", "-qf", "text.jsonl", "-o", "text.jsonl.zst"], cwd=folder, check=True)
    table = pyarrow.table({"id": range(len(texts)), "text": texts})
    pyarrow.parquet.write_table(table, folder / "text.parquet", row_group_size=5000)
    # With null for the empty ones, in a dictionary, and cut into many row groups.
    odd = pyarrow.array([text or None for text in texts]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": odd}), folder / "odd.parquet", row_group_size=97)
    view = pyarrow.array(texts, pyarrow.string_view())
    pyarrow.parquet.write_table(pyarrow.table({"text": view}), folder / "view.parquet")
    # A column that is none of a conversation's holds what JSON has not.
    chats = [{"messages": [{"role": "user", "content": text[:200]}, {"role": "assistant", "content": "a", "weight": 1.0 * (i % 2)}],
              "tools": None, "score": math.nan if i % 3 else math.inf} for i, text in enumerate(texts[:3000])]
    write_chats(folder, "chats", chats)
    # Some templates look for content that is null.
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    write_chats(folder, "calls", [{"messages": [{"role": "user", "content": "u", "tool_calls": None},
                                                {"role": "assistant", "content": None, "tool_calls": [call]}]}])


def write_chats(folder, name, chats):
    with open(folder / f"{name}.jsonl", "w") as file:
        file.writelines(json.dumps({key: chat[key] for key in chat if key != "score"}, ensure_ascii=False) + "\n" for chat in chats)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(chats), folder / f"{name}.parquet")


def tokenize(command, folder, name, *options):
    done = subprocess.run([*command, name, "-o", "out", *options], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "PERIGEE_PYTHON": sys.executable})
    assert done.returncode == 0, (name, done.stderr)
    speed = re.search(r"([0-9.]+) M tokens/s", done.stdout)
    files = [(folder / f"out{ending}").read_bytes() for ending in (".bin", ".idx")]
    return files, float(speed.group(1)) if speed else 0


def main():
    command, folder = sys.argv[1].split(), pathlib.Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder / "tokenizer")
    write_all(folder)
    plain, best = tokenize(command, folder, "text.jsonl", "--tokenizer", "tokenizer")[0], {}
    for _ in range(ROUNDS):  # interleaved, as other work may run beside
        for name in ("text.jsonl", "text.jsonl.zst", "text.parquet"):
            files, speed = tokenize(command, folder, name, "--tokenizer", "tokenizer")
            assert files == plain, f"{name} is not the same"
            best[name] = max(best.get(name, 0), speed)
    for name, speed in best.items():
        print(f"{name}: {speed:.2f} M tokens/s, {speed / best['text.jsonl']:.0%} of plain text; the same files")
        assert speed >= SLOWEST * best["text.jsonl"], name
    for name in ("odd.parquet", "view.parquet"):
        assert tokenize(command, folder, name, "--tokenizer", "tokenizer")[0] == plain, f"{name} is not the same"
    (folder / "chat.yaml").write_text("chat: {template: chatml}\n")
    (folder / "calls.jinja").write_text(CALLS)
    (folder / "calls.yaml").write_text("chat: {jinja: {file: calls.jinja}}\n")
    for name, config in (("chats", "chat.yaml"), ("calls", "calls.yaml")):
        chats = [tokenize(command, folder, f"{name}.{ending}", "--chat", config)[0] for ending in ("jsonl", "parquet")]
        assert chats[0] == chats[1], f"{name}.parquet is not the same"
    print("conversations: the same files")


main()
