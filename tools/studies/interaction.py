#!/usr/bin/env python3
"""Study 4 from its raw rows: do full last layers help more where fewer tokens carry loss?

    python3 tools/studies/interaction.py docs/studies/4_sparse_loss_xs --all all_tokens

Reads samples.csv, runs.csv, curves.csv, layers.csv and mass.csv of rows.py. Arms are named as `questions_3 last=2`: the
tokens with loss, and the number of full layers at the end. Prints, by arm and number: loss per held-out answer token at
the end, the lowest while training with its step, loss of the last training step, accuracy, reach of the layers, gate's and
best possible share of full attention's softmax at the answers, and participation of the layers. Then, for each arm, how
much lower the loss is with --full layers full (where not said, the most) than with the fewest, and this minus the same of
arm --all: of the last held-out loss with 95% intervals by bootstrap over held-out samples (the same samples in all runs of
a seed), and by seed; of the lowest by seed. Runs that an arm lacks are an error.

With three seeds or more, in one folder or in several, means over the seeds follow, with 95% intervals by Student's t:

    python3 tools/studies/interaction.py docs/studies/4_sparse_loss_xs docs/studies/4_participation_xs --full 1
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


def average(values):
    return sum(values) / len(values)


def with_spread(values):
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return means(values) + spread


def by_layer(path, column):
    """{(arm, seed): [the column's value of each layer]}"""
    found = collections.defaultdict(list)
    for row in sorted(rows(path), key=lambda row: int(row["layer"])) if path.exists() else ():
        if row.get(column):
            found[row["arm"], row["seed"]].append(float(row[column]))
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


class Grid:
    """The runs of a study: arms times numbers of full layers, all with the same seeds."""

    def __init__(self, folder, all_tokens, full, complain):
        read = page.read(folder / "samples.csv")
        self.arms = {arm for arm, _ in read if " last=" in arm}
        self.table = {split(arm): read[arm, page.own_attention(read, arm)] for arm in self.arms}
        self.names = sorted({name for name, _ in self.table}, key=lambda name: (name != all_tokens, name))
        self.numbers = sorted({last for _, last in self.table})
        if all_tokens not in self.names or len(self.numbers) < 2 or len(self.table) < len(self.names) * len(self.numbers):
            complain(f"{folder}: needs arm {all_tokens}, two numbers of full layers, and each number of each arm")
        self.seeds = sorted(set.intersection(*(set(by_seed) for by_seed in self.table.values())))
        if lacking := sorted(f"{name} last={last}" for (name, last), by_seed in self.table.items() if len(by_seed) > len(self.seeds)):
            complain(f"{folder}: {lacking[0]} has seeds that other runs lack")
        self.samples = sorted(next(iter(self.table.values()))[self.seeds[0]])  # page.read() has seen to it that all runs have the same
        self.ends = (self.numbers[0], self.numbers[-1] if full is None else full)
        if self.ends[1] not in self.numbers[1:]:
            complain(f"--full {full}: {folder} has {self.numbers}")
        self.lowest = lowest(folder / "curves.csv")

    def losses(self, name, last):
        """By seed: the loss at the end of all held-out samples."""
        return [page.mean([self.table[name, last][seed][i] for i in self.samples], ANSWERS) for seed in self.seeds]

    def gains(self, name):
        """By seed: loss at the end with the first number of layers full minus that with the second."""
        return effects(self.table, name, self.ends, self.seeds, self.samples)

    def gains_of_lowest(self, name):
        """The same of the lowest loss while training; empty where a run has none."""
        runs = [[(f"{name} last={last}", seed) for last in self.ends] for seed in self.seeds]
        if not all(run in self.lowest for pair in runs for run in pair):
            return []
        return [self.lowest[few][0] - self.lowest[many][0] for few, many in runs]


def print_runs(grid, folder):
    accuracy, trained = collections.defaultdict(list), {}
    for row in rows(folder / "runs.csv"):
        if row["arm"] in grid.arms and row["seed"] in grid.seeds:
            if row["loss"]:
                trained[row["arm"], row["seed"]] = float(row["loss"])
            if row["eval_accuracy"]:
                accuracy[row["arm"]].append(float(row["eval_accuracy"]))
    reach, participation = (by_layer(folder / "layers.csv", column) for column in ("reach", "participation"))
    gate, best = (shares(folder / "mass.csv", rule) for rule in ("gate", "best"))
    head = ["loss on", "last full", "answers' loss", "lowest", "at step", "last step's training loss", "accuracy",
            "reach by layer", "gate, best"] + ["participation by layer"] * bool(participation)
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for name in grid.names:
        for last in grid.numbers:
            arm = f"{name} last={last}"
            of_layers = lambda found: ", ".join(means(values) for values in zip(*(found.get((arm, seed), []) for seed in grid.seeds)))
            of_mass = ", ".join(f"{100 * sum(of[arm, seed] for seed in grid.seeds) / len(grid.seeds):.1f}%" for of in (gate, best)
                                if all((arm, seed) in of for seed in grid.seeds))
            lows = [grid.lowest[arm, seed] for seed in grid.seeds if (arm, seed) in grid.lowest]
            cells = [name, last, with_spread(grid.losses(name, last)), means([low for low, _ in lows]),
                     ", ".join(str(step) for _, step in lows),
                     means([trained[arm, seed] for seed in grid.seeds if (arm, seed) in trained]), with_spread(accuracy[arm]),
                     of_layers(reach), of_mass] + [of_layers(participation)] * bool(participation)
            print(f"| {' | '.join(map(str, cells))} |")


def print_interaction(grid, all_tokens, number_of_draws):
    print(f"\n| loss on | {grid.ends[0]} full minus {grid.ends[1]} full | minus that of {all_tokens} | seeds "
          "| lowest, by seed |\n|---|---|---|---|---|")
    draw = random.Random(20251)
    draws = [draw.choices(grid.samples, k=len(grid.samples)) for _ in range(number_of_draws)]
    drawn = {name: [effects(grid.table, name, grid.ends, grid.seeds, chosen) for chosen in draws] for name in grid.names}
    for name in grid.names:
        low, high = page.middle_95([average(values) for values in drawn[name]])
        cells = ["", ""]
        if name != all_tokens:
            against = [a - b for a, b in zip(grid.gains(name), grid.gains(all_tokens))]
            less, more = page.middle_95([average(a) - average(b) for a, b in zip(drawn[name], drawn[all_tokens])])
            cells = [f"{average(against):+.4f} [{less:+.4f}, {more:+.4f}]", ", ".join(f"{x:+.4f}" for x in against)]
        cells.append(", ".join(f"{x:+.4f}" for x in grid.gains_of_lowest(name)))
        print(f"| {name} | {average(grid.gains(name)):+.4f} [{low:+.4f}, {high:+.4f}] | {' | '.join(cells)} |")


def print_seeds(grids, all_tokens):
    """Means over the seeds of all grids with intervals by Student's t, of the arms that all have."""
    seeds = [seed for grid in grids for seed in grid.seeds]
    few, many = grids[0].ends
    summary = lambda by_seed: f"{average(by_seed):+.4f} {page.student(by_seed)}: {', '.join(f'{x:+.4f}' for x in by_seed)}"
    print(f"\nSeeds {', '.join(seeds)}\n\n| loss on | {few} full minus {many} full, at the end | minus that of {all_tokens} "
          f"| the same at the lowest | minus that of {all_tokens} |\n|---|---|---|---|---|")
    for name in grids[0].names:
        if not all(name in grid.names for grid in grids):
            continue
        cells = []
        for of in (Grid.gains, Grid.gains_of_lowest):
            gains, base = ([x for grid in grids for x in of(grid, arm)] for arm in (name, all_tokens))
            complete = len(gains) == len(base) == len(seeds)
            cells.append(summary(gains) if complete else "")
            cells.append(summary([a - b for a, b in zip(gains, base)]) if complete and name != all_tokens else "")
        print(f"| {name} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", type=pathlib.Path, nargs="+")
    parser.add_argument("--all", default="all_tokens", help="arm with loss on all tokens")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="a picture of the losses, SVG; of one folder")
    parser.add_argument("--full", type=int, help="number of full layers to compare with the fewest")
    parser.add_argument("--draws", type=int, default=page.DRAWS)
    args = parser.parse_args()
    grids = [Grid(folder, args.all, args.full, parser.error) for folder in args.rows]
    if len({grid.ends for grid in grids}) > 1:
        parser.error(f"the folders compare other numbers of full layers: {', '.join(str(grid.ends) for grid in grids)}; use --full")
    seeds = [seed for grid in grids for seed in grid.seeds]
    if twice := {seed for seed in seeds if seeds.count(seed) > 1}:
        parser.error(f"seed {min(twice)} is in several folders")
    if args.output:
        if len(grids) > 1:
            parser.error("--output takes the rows of one folder")
        grid = grids[0]
        runs = {name: {last: [(f"{name} last={last}", seed) for seed in grid.seeds] for last in grid.numbers} for name in grid.names}
        panels = [("held-out answers at the end, nats",
                   {name: {last: grid.losses(name, last) for last in grid.numbers} for name in grid.names})]
        if len(grid.lowest) >= len(grid.arms) * len(grid.seeds):
            panels.append(("at the best step, nats", {name: {last: [grid.lowest[run][0] for run in of_seeds] for last, of_seeds
                                                             in by_number.items()} for name, by_number in runs.items()}))
        args.output.write_text(svg(panels, grid.numbers))
    for grid, folder in zip(grids, args.rows):
        print_runs(grid, folder)
        print_interaction(grid, args.all, args.draws)
    if len(seeds) > 2:
        print_seeds(grids, args.all)


if __name__ == "__main__":
    main()
