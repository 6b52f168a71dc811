#!/usr/bin/env bash
# tools/data on a made-up package tree: what is long, short, held out, a copy or a table; that parts can be tokenized; and
# the conversations of study 4.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
command -v zstd >/dev/null && command -v python3 >/dev/null || { echo "needs zstd and python3"; exit 77; }
check() {
    local what=$1
    shift
    "$@" || complain "$what"
}
python3 - "$scratch" <<'PY'
import os, random, sys, tarfile
syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
words = [random.Random(0).choice(syllables) + a + b for a in syllables for b in syllables]
def prose(seed, size):
    draw, lines, length = random.Random(seed), [], 0
    while length < size:
        lines.append(" ".join(draw.choice(words) for _ in range(12)))
        length += len(lines[-1]) + 1
    return "\n".join(lines) + "\n"
root = os.path.join(sys.argv[1], "unpacked")
def put(path, text):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
kernel = {"kernel/large/b.c": prose(1, 90000), "kernel/large/a.c": prose(2, 40000), "kernel/large/z.h": prose(3, 20000),
          "kernel/small/only.c": prose(4, 5000), "fs/xfs/held.c": prose(5, 200000), "kernel/large/copy_of_held.c": prose(5, 200000),
          "kernel/large/table.c": "0x1234, 0x5678, 0x9abc,\n" * 4000, "arch/left_out.c": prose(6, 200000)}
with open(os.path.join(sys.argv[1], "first"), "w") as file:
    file.writelines(kernel[f"kernel/large/{name}"].split("\n", 1)[0] + "\n" for name in ("z.h", "a.c", "b.c"))
archive = os.path.join(root, "linux-source-6.1/usr/src/linux-source-6.1.tar.xz")
os.makedirs(os.path.dirname(archive), exist_ok=True)
with tarfile.open(archive, "w:xz") as tar:
    for name, text in kernel.items():
        put("tmp", text)
        tar.add(os.path.join(root, "tmp"), "linux-source-6.1/" + name)
book = "anarchism/usr/share/doc/anarchism/html/"
put(book + "secA1.html", "<html><head><title>no</title></head><body><p>" + prose(7, 3000) + "</p></body></html>")
put(book + "secB1.html", "<html><body><p>" + prose(8, 3000) + "</p></body></html>")
manual = "linux-doc-6.1/usr/share/doc/linux-doc-6.1/Documentation/"
for i in range(30):
    put(manual + f"guide/{i}.rst", f"Title number {i}\n=================\n\n" + prose(100 + i, 1500))
PY
corpus() {
    python3 "$PERIGEE_SOURCE/tools/data/corpus.py" "$scratch/unpacked" -o "$scratch/corpus" --level 1 \
        --packages linux-source-6.1 anarchism linux-doc-6.1 "$@"
}
corpus >"$scratch/printed" || complain "corpus.py"
cat >"$scratch/verify.py" <<'PY'
import json, subprocess, sys
def read(name):
    path = f"{sys.argv[1]}/corpus/{name}_000.jsonl.zst"
    data = subprocess.run(["zstd", "-dcq", "--long=27", path], stdout=subprocess.PIPE, check=True).stdout
    return {d["name"]: d for d in map(json.loads, data.splitlines())}
long, held, short, held_short = map(read, ("train_long", "held_out_long", "train_short", "held_out_short"))
assert set(long) == {"linux-source-6.1:kernel/large"}, set(long)
text = long["linux-source-6.1:kernel/large"]["text"]
assert 150000 < len(text) < 152000, len(text)  # neither the table nor the copy of what is held out
places = [text.index(sys.argv[2 + i]) for i in range(3)]
assert places == sorted(places) and places[0] == 0 and places[2] > 60000, places  # the header, then by size
assert set(held) == {"linux-source-6.1:fs/xfs"}
assert set(short) == {"linux-source-6.1:kernel/small/only.c", "anarchism:secA1.html"} | {
    f"linux-doc-6.1:guide/{i}.rst" for i in range(30)}, set(short)
assert "<p>" not in short["anarchism:secA1.html"]["text"] and "no" not in short["anarchism:secA1.html"]["text"].split()
assert set(held_short) == {"anarchism:secB1.html"}
assert short["anarchism:secA1.html"]["domain"] == "prose"
PY
mapfile -t first <"$scratch/first"
check "documents" python3 "$scratch/verify.py" "$scratch" "${first[@]}"
check "what is printed" grep -q "^train_long: 1 documents, code 0.1 MiB; compressed .* MiB in 1 parts" "$scratch/printed"
sha256sum "$scratch"/corpus/* >"$scratch/before"
corpus >/dev/null
check "again the same bytes" sha256sum --quiet -c "$scratch/before"
check "a missing package is named" grep -q "packages.sh downloads it" <(corpus --packages git-doc 2>&1)
"$PERIGEE_BIN/perigee" tokenize --tokenizer bytes -o "$scratch/long" "$scratch"/corpus/train_long_*.jsonl.zst >"$scratch/log" 2>&1
check "the parts can be tokenized" [ -s "$scratch/long.bin" ]

python3 "$PERIGEE_SOURCE/tools/data/titles.py" "$scratch"/corpus/train_short_*.zst -o "$scratch/titles" --count 5 --kib 20 \
    --questions 3 40 >/dev/null || complain "titles.py"
zstd -dqc "$scratch"/corpus/train_short_*.zst | sed -E 's/"domain": "manual", //' | grep -v '"domain"' >"$scratch/plain.jsonl"
python3 "$PERIGEE_SOURCE/tools/data/titles.py" "$scratch/plain.jsonl" -o "$scratch/titles_of_any" --count 5 --kib 20 \
    --questions 3 >/dev/null || complain "titles.py of texts without domains"
cmp "$scratch"/titles{,_of_any}/q3.jsonl || complain "titles.py: other texts without domains"
cat >"$scratch/verify.py" <<'PY'
import json, sys
for questions in (3, 40):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/titles/q{questions}.jsonl")]
    assert len(lines) == 5
    for line in lines:
        messages = line["messages"]
        assert [m["role"] for m in messages] == ["user", "assistant"] * questions
        body = messages[0]["content"]
        for ask, answer in zip(messages[::2], messages[1::2]):
            number = int(ask["content"].rsplit("title of text ", 1)[1].rstrip("?"))
            assert f"### text {number}\n" in body and answer["content"].startswith("Title number ")
            assert answer["content"] not in body
PY
check "conversations" python3 "$scratch/verify.py" "$scratch"

python3 "$PERIGEE_SOURCE/tools/data/needles.py" "$scratch"/corpus/train_long_*.zst -o "$scratch/needles.jsonl" --count 40 --kib 4 60 \
    >/dev/null || complain "needles.py"
cat >"$scratch/verify.py" <<'PY'
import json, re, sys
texts = [json.loads(line)["text"] for line in open(f"{sys.argv[1]}/needles.jsonl")]
assert len(texts) == 40 and min(map(len, texts)) > 4000 and max(map(len, texts)) < 63000
source = open(f"{sys.argv[2]}/src/eval/tasks.cc").read()
asked = {"code": 0, "motto": 0, "identifier": 0, "codes": 0}
depths = []
for text in texts:
    body = text[:text.index("\nQuestion: ")]
    for name, key, again, value in re.findall(
            r"\nQuestion: What is the (\w+) of ([a-z ]+)\?\nAnswer: The \1 of (.*?) is (.*)\n", text):
        statement = f"\nThe {name} of {key} is {value}.\n"
        assert again == key and body.count(statement) == 1, (name, key, value)
        depths.append(body.index(statement) / len(body))
        asked[name] += 1
    for key, again, values in re.findall(r"\nQuestion: Which 4 codes does (.*) have, in the order of the text\?\n"
                                         r"Answer: The 4 codes of (.*?) are (.*)\n", text):
        found = re.findall(rf"\nThe code of {key} is (\d+)\.(?=\n)", body)
        assert again == key and values == ", ".join(found) and len(found) == 4, (key, values, found)
        asked["codes"] += 1
assert sum(asked.values()) == sum(text.count("\nQuestion: ") for text in texts) and min(asked.values()) > 10, asked
assert min(depths) < 0.1 and max(depths) > 0.9 and 0.4 < sum(depths) / len(depths) < 0.6
# The words of the suites.
for words in ("\\nThe {} of {} is {}.\\n", "\\nQuestion: What is the {0} of {1}?\\nAnswer: The {0} of {1} is",
              "\\nQuestion: Which {1} codes does {0} have, in the order of the text?\\nAnswer: The {1} codes of {0} are"):
    assert words in source, words
PY
check "needles" python3 "$scratch/verify.py" "$scratch" "$PERIGEE_SOURCE"
verdict
