#!/usr/bin/env python3
"""Documents that teach to find a needle, for study 2: real text with facts in it, and questions about them at the end.

    python3 tools/data/needles.py ~/perigee_data/corpus/train_long_*.jsonl.zst -o ~/perigee_data/needles_32k.jsonl
    perigee tokenize --tokenizer data/study/tokenizer --key text -o data/study2/needles_32k ~/perigee_data/needles_32k.jsonl

Facts and questions are worded as in suite `needle` and in tasks `keys` and `values` of suite `ruler` (docs/evaluation.md).
Keys and mottos are words of the texts themselves. RULER's other tasks are left out on purpose: what a model learns of them
it did not learn here. Lengths are log-uniform, depths uniform; a document asks about every fact in an order of chance.
"""
import argparse
import json
import random
import re
import uuid

import texts

WORD = re.compile(r"\b[a-z]{4,8}\b")
MOST_FACTS = 8
VALUES = 4  # of one key, as in task `values`


def facts(words, draw):
    """(statements, question, answer) of one fact, or of one key with several values."""
    key = f"{draw.choice(words)} {draw.choice(words)}"
    kind = draw.choice(["number", "words", "uuid", "values"])
    number = lambda: str(draw.randrange(1_000_000, 10_000_000))
    if kind == "values":
        values = [number() for _ in range(VALUES)]
        return ([f"\nThe code of {key} is {value}.\n" for value in values],
                f"\nQuestion: Which {VALUES} codes does {key} have, in the order of the text?\n"
                f"Answer: The {VALUES} codes of {key} are", f" {', '.join(values)}")
    name, value = {"number": ("code", number), "words": ("motto", lambda: " ".join(draw.choices(words, k=5))),
                   "uuid": ("identifier", lambda: str(uuid.UUID(int=draw.getrandbits(128))))}[kind]
    value = value()
    return ([f"\nThe {name} of {key} is {value}.\n"],
            f"\nQuestion: What is the {name} of {key}?\nAnswer: The {name} of {key} is", f" {value}")


def document(text, size, words, draw):
    """A document of about so many characters. Statements stand between lines of the text, in the order of their depths."""
    asked = [facts(words, draw) for _ in range(draw.randint(1, MOST_FACTS))]
    statements = [(depth, statement) for stated, _, _ in asked
                  for depth, statement in zip(sorted(draw.random() for _ in stated), stated)]
    end = "".join(question + answer + "\n" for _, question, answer in draw.sample(asked, len(asked)))
    size = max(size - len(end) - sum(len(statement) for _, statement in statements), 0)
    begin = draw.randrange(max(len(text) - size, 1))
    text, parts, used = text[begin:begin + size], [], 0
    for depth, statement in sorted(statements, key=lambda stated: stated[0]):
        line = text.find("\n", max(int(depth * len(text)), used))
        until = len(text) if line < 0 else line
        parts += [text[used:until], statement.rstrip("\n") if until < len(text) else statement]
        used = until
    return "".join(parts) + text[used:] + end


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="+", help="JSONL of corpus.py")
    parser.add_argument("-o", "--output", required=True, help="JSONL")
    parser.add_argument("--count", type=int, default=2000, help="documents")
    parser.add_argument("--kib", type=float, nargs=2, default=(4, 80), metavar=("LEAST", "MOST"),
                        help="length of a document; 32K tokens are 75 to 95 KiB")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    long_enough = lambda document: len(document["text"]) >= args.kib[1] * 1024
    pool = [document["text"] for path in args.parts for document in filter(long_enough, texts.documents(path))]
    if not pool:
        parser.error(f"no text has {args.kib[1]:g} KiB")
    draw = random.Random(args.seed)
    words = sorted({word for text in pool for word in WORD.findall(text[:1 << 18])})
    with open(args.output, "w", encoding="utf-8") as file:
        for _ in range(args.count):
            size = int(1024 * args.kib[0] * (args.kib[1] / args.kib[0]) ** draw.random())
            file.write(json.dumps({"text": document(draw.choice(pool), size, words, draw)}, ensure_ascii=False) + "\n")
    print(f"{args.output}: {args.count} documents over {len(pool)} texts, {len(words)} words")


if __name__ == "__main__":
    main()
