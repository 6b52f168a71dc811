#!/usr/bin/env python3
"""Study 4 from its raw rows: do full last layers help more where fewer tokens carry loss?

    python3 tools/studies/interaction.py docs/studies/4_sparse_loss_xs --all all_tokens

Reads samples.csv, runs.csv, layers.csv and mass.csv of rows.py. Arms are named as `questions_3 last=2`: the tokens with
loss, and the number of full layers at the end. Prints, by arm and number: loss per held-out answer token, accuracy, reach
of the layers, and gate's and best possible share of full attention's softmax at the answers. Then, for each arm, how much
lower the loss is with most layers full than with fewest, and this minus the same of arm --all, with 95% intervals by
bootstrap over held-out samples (the same samples in all runs of a seed) and the seeds. Runs that an arm lacks are an
error.
"""
import argparse
import collections
import csv
import pathlib
import random

import page

ANSWERS = "all tokens"  # the held-out samples have loss on answers alone


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def split(arm):
    """(arm, number of full layers)"""
    name, _, last = arm.rpartition(" last=")
    return name, int(last)


def means(values):
    return f"{sum(values) / len(values):.3f}" if values else ""


def with_spread(values):
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return means(values) + spread


def reaches(path):
    """{(arm, seed): [reach of each layer]}"""
    found = collections.defaultdict(list)
    for row in sorted(rows(path), key=lambda row: int(row["layer"])) if path.exists() else ():
        found[row["arm"], row["seed"]].append(float(row["reach"]))
    return found


def shares(path, rule):
    """{(arm, seed): share of full attention's softmax inside the rule's blocks, over all layers}"""
    cells = page.sums(path, lambda row: (row["rule"], row["arm"], row["seed"]), ("mass", "pairs"))
    return {(arm, seed): mass / pairs for (of, arm, seed), (mass, pairs) in cells.items() if of == rule and pairs}


def effects(table, name, numbers, seeds, samples):
    """By seed: loss with the fewest layers full minus that with most, on these samples."""
    loss = lambda last, seed: page.mean([table[name, last][seed][i] for i in samples], ANSWERS)
    return [loss(numbers[0], seed) - loss(numbers[-1], seed) for seed in seeds]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", type=pathlib.Path)
    parser.add_argument("--all", default="all_tokens", help="arm with loss on all tokens")
    parser.add_argument("--draws", type=int, default=page.DRAWS)
    args = parser.parse_args()
    read = page.read(args.rows / "samples.csv")
    arms = {arm for arm, _ in read if " last=" in arm}
    table = {split(arm): read[arm, page.own_attention(read, arm)] for arm in arms}
    names = sorted({name for name, _ in table}, key=lambda name: (name != args.all, name))
    numbers = sorted({last for _, last in table})
    if args.all not in names or len(numbers) < 2 or len(table) < len(names) * len(numbers):
        parser.error(f"{args.rows}: needs arm {args.all}, two numbers of full layers, and each number of each arm")
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in table.values())))
    samples = sorted(set.intersection(*(set(by_seed[seed]) for by_seed in table.values() for seed in seeds))) if seeds else []
    if not samples:
        parser.error(f"{args.rows}: no seed and sample is in all runs")
    accuracy = collections.defaultdict(list)
    for row in rows(args.rows / "runs.csv"):
        if row["arm"] in arms and row["seed"] in seeds and row["eval_accuracy"]:
            accuracy[row["arm"]].append(float(row["eval_accuracy"]))
    reach = reaches(args.rows / "layers.csv")
    gate, best = (shares(args.rows / "mass.csv", rule) for rule in ("gate", "best"))
    print("| loss on | last full | answers' loss | accuracy | reach by layer | gate, best |\n|---|---|---|---|---|---|")
    for name in names:
        for last in numbers:
            arm = f"{name} last={last}"
            losses = [page.mean([table[name, last][seed][i] for i in samples], ANSWERS) for seed in seeds]
            layers = [means(values) for values in zip(*(reach[arm, seed] for seed in seeds))]
            of_mass = ", ".join(f"{100 * sum(of[arm, seed] for seed in seeds) / len(seeds):.1f}%" for of in (gate, best)
                                if all((arm, seed) in of for seed in seeds))
            print(f"| {name} | {last} | {with_spread(losses)} | {with_spread(accuracy[arm])} | {', '.join(layers)} | {of_mass} |")
    print(f"\n| loss on | {numbers[0]} full minus {numbers[-1]} full | minus that of {args.all} | seeds |\n|---|---|---|---|")
    draw = random.Random(20251)
    draws = [draw.choices(samples, k=len(samples)) for _ in range(args.draws)]
    drawn = {name: [effects(table, name, numbers, seeds, chosen) for chosen in draws] for name in names}
    average = lambda values: sum(values) / len(values)
    for name in names:
        found = effects(table, name, numbers, seeds, samples)
        low, high = page.middle_95([average(values) for values in drawn[name]])
        cells = ["", ""]
        if name != args.all:
            against = [a - b for a, b in zip(found, effects(table, args.all, numbers, seeds, samples))]
            less, more = page.middle_95([average(a) - average(b) for a, b in zip(drawn[name], drawn[args.all])])
            cells = [f"{average(against):+.4f} [{less:+.4f}, {more:+.4f}]", ", ".join(f"{x:+.4f}" for x in against)]
        print(f"| {name} | {average(found):+.4f} [{low:+.4f}, {high:+.4f}] | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
