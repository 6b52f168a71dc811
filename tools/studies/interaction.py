#!/usr/bin/env python3
"""Study 4 from its raw rows: do full last layers help more where fewer tokens carry loss?

    python3 tools/studies/interaction.py docs/studies/4_sparse_loss_xs --all all_tokens

Reads samples.csv, runs.csv, curves.csv, layers.csv and mass.csv of rows.py. Arms are named as `questions_3 last=2`: the
tokens with loss, and the number of full layers at the end. Prints, by arm and number: loss per held-out answer token at
the end, the lowest while training with its step, loss of the last training step, accuracy, reach of the layers, and gate's
and best possible share of full attention's softmax at the answers. Then, for each arm, how much lower the loss is with
--full layers full (where not said, the most) than with the fewest, and this minus the same of arm --all: of the last
held-out loss with 95% intervals by bootstrap over held-out samples (the same samples in all runs of a seed), and by seed;
of the lowest by seed. Runs that an arm lacks are an error.
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
        if row["reach"]:
            found[row["arm"], row["seed"]].append(float(row["reach"]))
    return found


def shares(path, rule):
    """{(arm, seed): share of full attention's softmax inside the rule's blocks, over all layers}"""
    cells = page.sums(path, lambda row: (row["rule"], row["arm"], row["seed"]), ("mass", "pairs"))
    return {(arm, seed): mass / pairs for (of, arm, seed), (mass, pairs) in cells.items() if of == rule and pairs}


def lowest(path):
    """{(arm, seed): (lowest held-out loss while training, its step)}"""
    found = {}
    for row in rows(path) if path.exists() else ():
        key, here = (row["arm"], row["seed"]), (float(row["eval_loss"]), int(row["step"]))
        found[key] = min(found.get(key, here), here)
    return found


def effects(table, name, numbers, seeds, samples):
    """By seed: loss with the first number of layers full minus that with the second, on these samples."""
    loss = lambda last, seed: page.mean([table[name, last][seed][i] for i in samples], ANSWERS)
    return [loss(numbers[0], seed) - loss(numbers[1], seed) for seed in seeds]


def svg(panels, numbers):
    """Of each panel (title, {arm: {number of full layers: a value for each seed}}): a dot a run, a line through means."""
    left, top, width, height = 46, 30, 250, 230
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {(left + width) * len(panels) + 130} '
             f'{top + height + 50}" font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="#fff"/>']
    for panel, (title, arms) in enumerate(panels):
        begin = left + panel * (left + width)
        every = [x for by_number in arms.values() for values in by_number.values() for x in values]
        low, high = min(every), max(every)
        across = lambda i: begin + 14 + (width - 28) * i / max(len(numbers) - 1, 1)
        down = lambda x: top + 8 + (height - 16) * (high - x) / (high - low or 1)
        parts.append(f'<text x="{begin}" y="18">{title}</text>')
        for k in range(5):
            x = low + (high - low) * k / 4
            parts.append(f'<line x1="{begin}" x2="{begin + width}" y1="{down(x):.1f}" y2="{down(x):.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{begin - 6}" y="{down(x) + 4:.1f}" text-anchor="end" fill="#555">{x:.2f}</text>')
        for i, number in enumerate(numbers):
            parts.append(f'<text x="{across(i):.1f}" y="{top + height + 18}" text-anchor="middle" fill="#555">{number}</text>')
        for (name, by_number), colour in zip(arms.items(), page.COLOURS):
            line = [(across(i), down(sum(by_number[n]) / len(by_number[n]))) for i, n in enumerate(numbers)]
            parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in line)}" fill="none" '
                         f'stroke="{colour}" stroke-width="2"/>')
            parts += [f'<circle cx="{across(i):.1f}" cy="{down(x):.1f}" r="2.5" fill="{colour}"/>'
                      for i, n in enumerate(numbers) for x in by_number[n]]
    right = (left + width) * len(panels) + 12
    for i, (name, colour) in enumerate(zip(panels[0][1], page.COLOURS)):
        y = top + 14 + 20 * i
        parts.append(f'<line x1="{right}" x2="{right + 20}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 26}" y="{y + 4}">{name}</text>')
    parts.append(f'<text x="{left}" y="{top + height + 40}" fill="#555">full layers at the end</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", type=pathlib.Path)
    parser.add_argument("--all", default="all_tokens", help="arm with loss on all tokens")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="a picture of the losses, SVG")
    parser.add_argument("--full", type=int, help="number of full layers to compare with the fewest")
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
    if lacking := sorted(f"{name} last={last}" for (name, last), by_seed in table.items() if len(by_seed) > len(seeds)):
        parser.error(f"{args.rows}: {lacking[0]} has seeds that other runs lack")
    samples = sorted(next(iter(table.values()))[seeds[0]])  # page.read() has seen to it that all runs have the same
    ends = (numbers[0], numbers[-1] if args.full is None else args.full)
    if ends[1] not in numbers[1:]:
        parser.error(f"--full {ends[1]}: {args.rows} has {numbers}")
    accuracy, trained = collections.defaultdict(list), {}
    for row in rows(args.rows / "runs.csv"):
        if row["arm"] in arms and row["seed"] in seeds:
            if row["loss"]:
                trained[row["arm"], row["seed"]] = float(row["loss"])
            if row["eval_accuracy"]:
                accuracy[row["arm"]].append(float(row["eval_accuracy"]))
    best_while = lowest(args.rows / "curves.csv")
    reach = reaches(args.rows / "layers.csv")
    gate, best = (shares(args.rows / "mass.csv", rule) for rule in ("gate", "best"))
    if args.output:
        held_out = {name: {last: [page.mean([table[name, last][seed][i] for i in samples], ANSWERS) for seed in seeds]
                           for last in numbers} for name in names}
        panels = [("held-out answers at the end, nats", held_out)]
        if len(best_while) >= len(arms) * len(seeds):
            panels.append(("at the best step, nats", {name: {last: [best_while[f"{name} last={last}", seed][0] for seed in seeds]
                                                             for last in numbers} for name in names}))
        args.output.write_text(svg(panels, numbers))
    print("| loss on | last full | answers' loss | lowest | at step | last step's training loss | accuracy | reach by layer | gate, best |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        for last in numbers:
            arm = f"{name} last={last}"
            losses = [page.mean([table[name, last][seed][i] for i in samples], ANSWERS) for seed in seeds]
            layers = [means(values) for values in zip(*(reach[arm, seed] for seed in seeds))]
            of_mass = ", ".join(f"{100 * sum(of[arm, seed] for seed in seeds) / len(seeds):.1f}%" for of in (gate, best)
                                if all((arm, seed) in of for seed in seeds))
            lows = [best_while[arm, seed] for seed in seeds if (arm, seed) in best_while]
            print(f"| {name} | {last} | {with_spread(losses)} | {means([low for low, _ in lows])} "
                  f"| {', '.join(str(step) for _, step in lows)} | {means([trained[arm, seed] for seed in seeds if (arm, seed) in trained])} "
                  f"| {with_spread(accuracy[arm])} | {', '.join(layers)} | {of_mass} |")
    print(f"\n| loss on | {ends[0]} full minus {ends[1]} full | minus that of {args.all} | seeds "
          "| lowest, by seed |\n|---|---|---|---|---|")
    draw = random.Random(20251)
    draws = [draw.choices(samples, k=len(samples)) for _ in range(args.draws)]
    drawn = {name: [effects(table, name, ends, seeds, chosen) for chosen in draws] for name in names}
    average = lambda values: sum(values) / len(values)

    def gains(found, name):
        """By seed, from a number for each run."""
        runs = [[(f"{name} last={last}", seed) for last in ends] for seed in seeds]
        return [found[few] - found[many] for few, many in runs] if all(run in found for pair in runs for run in pair) else []

    lows = {run: loss for run, (loss, _) in best_while.items()}
    for name in names:
        found = effects(table, name, ends, seeds, samples)
        low, high = page.middle_95([average(values) for values in drawn[name]])
        cells = ["", ""]
        if name != args.all:
            against = [a - b for a, b in zip(found, effects(table, args.all, ends, seeds, samples))]
            less, more = page.middle_95([average(a) - average(b) for a, b in zip(drawn[name], drawn[args.all])])
            cells = [f"{average(against):+.4f} [{less:+.4f}, {more:+.4f}]", ", ".join(f"{x:+.4f}" for x in against)]
        cells.append(", ".join(f"{x:+.4f}" for x in gains(lows, name)))
        print(f"| {name} | {average(found):+.4f} [{low:+.4f}, {high:+.4f}] | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
