#!/usr/bin/env python3
"""What a switch of attention did to the training loss, from the losses of rows.py, without a GPU.

    python3 tools/studies/rows.py runs/studies/3_switch_xs --losses 1859 2289 -o docs/studies/3_switch_xs
    python3 tools/studies/switch.py docs/studies/3_switch_xs --step 2060 gate_90_full_10=gate full_90_gate_10=full

Each pair names an arm that switches and the arm that it repeats until then. Per seed it prints
    jump     loss of the switched arm minus that of the other at the first step of the new kind, in nats: the same
             weights and the same samples under both kinds
    sigma    standard deviation of a loss around its running mean over the steps before, in nats
    highest  the largest distance above the running mean in the 200 steps from the switch on, in sigmas; beside it that
             of the other arm in the same steps
    largest  the largest difference to the loss of the other arm, which had the same samples, in these 200 steps
    above    in how many of them the loss is above that of the other arm
    end      mean difference over the last 50 steps, in nats
The running mean weighs the past by 0.95 per step. Above 5 sigmas, or with a jump above 0.1 nats, a row says spike.
Losses of the two that differ before the switch are an error: then the weights at the switch were not the same.
"""
import argparse
import collections
import csv
import pathlib
import statistics
import sys

KEEP, WINDOW, END = 0.95, 200, 50


def read(path):
    """{arm: {seed: {step: loss}}}"""
    table = collections.defaultdict(lambda: collections.defaultdict(dict))
    with path.open() as file:
        for row in csv.DictReader(file):
            table[row["arm"]][row["seed"]][int(row["step"])] = float(row["loss"])
    return table


def above_mean(losses):
    """{step: distance of the loss from the running mean of the steps before}"""
    found, mean = {}, None
    for step, loss in sorted(losses.items()):
        if mean is not None:
            found[step] = loss - mean
        mean = loss if mean is None else KEEP * mean + (1 - KEEP) * loss
    return found


def measure(switched, other, first):
    """What the docstring lists, of one seed; `first` is the first step of the new kind."""
    if early := [step for step in switched if step < first and switched[step] != other.get(step)]:
        raise ValueError(f"losses differ from step {min(early)} on, before the switch at step {first}")
    after = [step for step in switched if first <= step < first + WINDOW]
    mine, theirs = above_mean(switched), above_mean(other)
    sigma = statistics.pstdev(theirs[step] for step in theirs if step < first)
    jump = switched[first] - other[first]
    highest = [max(distances[step] for step in after) / sigma for distances in (mine, theirs)]
    differences = [switched[step] - other[step] for step in after]
    largest, above = max(differences), sum(difference > 0 for difference in differences)
    last = sorted(switched)[-END:]
    return jump, sigma, *highest, largest, above, statistics.fmean(switched[step] - other[step] for step in last)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", type=pathlib.Path, help="folder of losses.csv")
    parser.add_argument("pairs", nargs="+", metavar="SWITCHED=OTHER")
    parser.add_argument("--step", type=int, required=True, help="attention.schedule's step of the switch")
    args = parser.parse_args()
    table = read(args.rows / "losses.csv")
    text = ("| arm | against | seed | jump | sigma | highest, sigmas | of the other | largest | above | end | |\n"
            "|---|---|---|---|---|---|---|---|---|---|---|\n")
    for pair in args.pairs:
        arm, other = pair.split("=")
        seeds = sorted(table[arm].keys() & table[other].keys())
        if not seeds:
            sys.exit(f"switch.py: no seed has losses of both {arm} and {other}")
        for seed in seeds:
            try:
                # The schedule counts steps from 0, the metrics say how many are done.
                jump, sigma, mine, theirs, largest, above, end = measure(table[arm][seed], table[other][seed], args.step + 1)
            except ValueError as error:
                sys.exit(f"switch.py: {arm}, seed {seed}: {error}")
            verdict = "spike" if mine > 5 or jump > 0.1 else ""
            text += (f"| {arm} | {other} | {seed} | {jump:+.4f} | {sigma:.4f} | {mine:.1f} | {theirs:.1f} | "
                     f"{largest:+.4f} | {above} | {end:+.4f} | {verdict} |\n")
    (args.rows / "switch.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
