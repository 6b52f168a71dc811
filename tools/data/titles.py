#!/usr/bin/env python3
"""Conversations for study 4: which title had a text far back? On real text, without downloads.

    python3 tools/data/titles.py ~/perigee_data/corpus/train_short_*.jsonl.zst -o data/study4 --questions 3 10 80
    perigee tokenize --chat tools/data/titles.yaml -o data/study4/q10 data/study4/q10.jsonl

The user gives 20 to 60 texts, cut at 6,000 bytes, each without its title line, numbered, and then asks for the titles of
some by number; each answer is the line that was taken out, 8 to 15 tokens. It does not stand in its text: a model has to
find the text and infer it. The number of questions sets the share of tokens with loss: 3 are 0.1%, 10 are 0.4%, 80 are
3%. With more questions than texts some are asked again, and then the answer stands in the conversation. Which texts and
questions come together follows from the seed alone.
"""
import argparse
import json
import os
import random

import texts

LEAST, MOST = 600, 6000  # bytes of a text
MOST_TITLE = 90
UNDERLINE = set("=-~*#^+")


def manuals(paths):
    """Texts of corpus.py's manuals, and all texts that name no domain."""
    return (document["text"] for path in paths for document in texts.documents(path)
            if document.get("domain", "manual") == "manual")


def titled(text):
    """(title, text without it) of a text whose title is a line with an underline; None of others."""
    lines = text.split("\n")
    for at in range(min(len(lines) - 1, 40)):
        title, under = lines[at].strip(), lines[at + 1].strip()
        if 8 <= len(title) <= MOST_TITLE and len(under) >= len(title) and len(set(under)) == 1 and under[0] in UNDERLINE:
            rest = "\n".join(lines[:max(at - 1, 0)] + lines[at + 2:]).strip()
            return (title, rest[:MOST]) if len(rest) >= LEAST and title not in rest[:MOST] else None
    return None


def conversation(pool, most_bytes, questions, draw):
    """A conversation of at most so many bytes; of every text at most one question, while there are as many texts,
    in an order of chance."""
    given, size = [], 0
    while size < most_bytes - 120 * questions:
        text = draw.choice(pool)
        given.append(text)
        size += len(text[1]) + 20
    asked = [draw.randrange(len(given)) for _ in range(questions)] if questions > len(given) else \
        draw.sample(range(len(given)), questions)
    body = "\n\n".join(f"### text {i + 1}\n{text}" for i, (_, text) in enumerate(given))
    messages = []
    for i, number in enumerate(asked):
        ask = f"### title of text {number + 1}?"
        messages += [{"role": "user", "content": body + "\n\n" + ask if i == 0 else ask},
                     {"role": "assistant", "content": given[number][0]}]
    return {"messages": messages}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="+", help="JSONL of corpus.py, or with a text a line")
    parser.add_argument("-o", "--output", required=True, help="folder of qN.jsonl")
    parser.add_argument("--questions", type=int, nargs="+", default=[3, 10, 80])
    parser.add_argument("--count", type=int, default=2000, help="conversations")
    parser.add_argument("--kib", type=float, default=70, help="text of one, at most: 32K tokens are 75 to 95")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    pool = [found for found in map(titled, manuals(args.parts)) if found]
    if not pool:
        parser.error("none of the texts has a title line")
    os.makedirs(args.output, exist_ok=True)
    for questions in args.questions:
        draw = random.Random(args.seed)
        with open(os.path.join(args.output, f"q{questions}.jsonl"), "w", encoding="utf-8") as file:
            for _ in range(args.count):
                file.write(json.dumps(conversation(pool, args.kib * 1024, questions, draw), ensure_ascii=False) + "\n")
    print(f"{args.output}: {args.count} conversations over {len(pool)} titled texts, {args.questions} questions")


if __name__ == "__main__":
    main()
