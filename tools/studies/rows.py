#!/usr/bin/env python3
"""The raw rows of a study, small enough for the repository: what its figures and tables are drawn from.

    python3 tools/studies/rows.py runs/studies/1_scaling_xs -o docs/studies/1_scaling_xs

From the records of `eval --suite` in every finished run (docs/evaluation.md) it writes
    samples.csv    per arm, seed, attention and held-out sample, if any: weight and sum of nll, of all tokens and of far repeats
    positions.csv  per arm, seed, attention, last position of the bin and kind of token: the same, over all samples
    mass.csv       per arm, seed, attention, layer and rule of suite mass, if any: pairs of a query and a head, and the sum
                   of the shares of full attention's softmax inside the blocks of the rule
    needles.csv    per arm, seed, attention, task, length and depth of needle and ruler, if any: items, and those passed
    curves.csv     per arm, seed and evaluation while training: step, tokens so far, held-out loss, hash of the held-out data
    runs.csv       per arm and seed: steps, tokens, losses, accuracy, seconds, mean speed, program, commit and hardware
    layers.csv     with eval.reach or log.participation_every: per arm, seed and layer: reach and gate recall at the last
                   evaluation, participation as the mean over the steps that report it
    losses.csv     with --losses FIRST LAST: per arm, seed and logged step between the two: training loss
With --stopped it also takes runs that have begun and not finished; `finished` is 0 there in curves.csv and runs.csv.
Runs that went before all others stand there as arm `before`, or `before 1`, `before 2` in the order of training. With a
grid, its values follow the arm's name, as in `questions_3 last=0`.
"""
import argparse
import collections
import csv
import json
import math
import pathlib
import sys

RUN_KEYS = ("step", "tokens_so_far", "loss", "eval_loss", "eval_accuracy", "seconds", "tokens_per_s", "tflops",
            "parameters", "program", "hardware", "attended_share")


def lines(path, needed=()):
    """The objects of a file with one a line, or none if it is not there. A last line that is not whole is left out. Ends the
    program at another that is no object with the keys that are needed."""
    text = path.read_text() if path.exists() else ""
    for i, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if i > text.count("\n"):
                return
            sys.exit(f"{path}:{i}: not JSON: {error}")
        if not isinstance(record, dict) or any(key not in record for key in needed):
            sys.exit(f"{path}:{i}: not a JSON object{' with ' if needed else ''}{', '.join(needed)}")
        yield record


def refuse_mixed(path, found):
    """Ends the program where the records of the position suite are of lengths or bins that cannot be added up."""
    bins = collections.defaultdict(set)
    for record in found:
        bins[record["attention"]].add((record["begin"], record["end"], record["length"]))
    for attention, parts in bins.items():
        if len(lengths := {length for *_, length in parts}) > 1:
            sys.exit(f"{path}: position, {attention}: evaluations with samples of {sorted(lengths)} tokens; keep those of one")
        for (begin, end, _), (next_begin, next_end, _) in zip(sorted(parts), sorted(parts)[1:]):
            if next_begin < end:
                sys.exit(f"{path}: position, {attention}: evaluations with bins of other edges, {begin} to {end} and "
                         f"{next_begin} to {next_end}; keep one of them")


class Repeats:
    """How far records that a later one replaces are from it. A repeated evaluation gives the same, but for rounding."""

    MOST = 0.0005  # nats per token, or share of the softmax per query

    def __init__(self, path):
        self.path, self.sums = path, collections.defaultdict(lambda: [0.0, 0.0])

    def keep(self, to, key, record, value):
        before = to.get(key)
        if before:
            kind = f"{record['suite']}, {record['attention']}"
            for field in ("length", "begin", "weight"):
                old, new = before.get(field, 0), record.get(field, 0)
                if not math.isclose(old, new, rel_tol=1e-6):
                    self.refuse(kind, f"{field} {old} and {new} of sample {record['number']}")
            sums = self.sums[kind]
            sums[0] += abs(before[value] - record[value])
            sums[1] += record["weight"]
        to[key] = record

    def check(self):
        for kind, (apart, weight) in self.sums.items():
            if apart > self.MOST * weight:
                self.refuse(kind, f"results {apart / weight:.4f} apart")

    def refuse(self, kind, why):
        sys.exit(f"{self.path}: {kind}: two evaluations of the same samples differ in more than the kind of attention: "
                 f"{why}; keep the records of one")


def records(path):
    """Records of the position suite by (attention, sample, bin, task), of the mass suite by (attention, sample, layer,
    task), of the others by (attention, suite and task, length, depth, number): of a repeated evaluation the last. Ends the
    program where there are evaluations that differ in anything else, as their records cannot be told apart."""
    found, masses, items, steps = {}, {}, {}, set()
    repeats = Repeats(path)
    for record in lines(path, ("suite", "attention", "number")):
        steps.add(record.get("step"))
        if record["suite"] == "mass":
            if record["mass"] is None:
                sys.exit(f"{path}: mass, {record['attention']}: sample {record['number']} has a share that is not finite")
            key = record["attention"], record["number"], record["layer"], record["task"]
            repeats.keep(masses, key, record, "mass")
        elif record["suite"] != "position":
            task = f"{record['suite']} {record.get('task', '')}"
            key = record["attention"], task, record.get("length", 0), record.get("depth", ""), record["number"]
            if record.get("overrides") != items.get(key, record).get("overrides"):
                sys.exit(f"{path}: {task}, {record['attention']}: two evaluations of the same items with other options; keep "
                         "the records of one")
            items[key] = record
        elif record.get("nll") is None:
            sys.exit(f"{path}: position, {record['attention']}: sample {record['number']} has a loss that is not finite")
        else:
            repeats.keep(found, (record["attention"], record["number"], record["end"], record["task"]), record, "nll")
    if len(steps) > 1:
        sys.exit(f"{path}: evaluations of steps {', '.join(map(str, sorted(steps, key=str)))}; keep the records of one step")
    refuse_mixed(path, found.values())
    repeats.check()
    return found, masses, items


def summed(found, key_of):
    sums = collections.defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for key, record in found.items():
        to = sums[key_of(*key)]
        to[0] += record["weight"]
        to[1] += record["nll"]
        if key[3] == "far":
            to[2] += record["weight"]
            to[3] += record["nll"]
    return sums


def passed(items):
    """{all of the key but the number: [items, those passed]}"""
    sums = collections.defaultdict(lambda: [0, 0])
    for (*cell, _), record in items.items():
        sums[tuple(cell)][0] += 1
        sums[tuple(cell)][1] += bool(record["passed"])
    return sums


def name_of(folder):
    """[arm and values of the grid, seed] as the name of a run's folder says them."""
    settings = dict(part.split("=", 1) if "=" in part else (part, "") for part in folder.name.split(","))
    seed = settings.pop("seed", "")
    arm = [f"before {settings.pop('before')}".strip()] if "before" in settings else []
    arm += [settings.pop("arm")] if "arm" in settings else []
    return [" ".join(arm + [f"{key}={value}" for key, value in settings.items()]), seed]


def training(folder):
    """What the run logged last, the sum of its seconds, its mean speed and share of attended keys over all steps, its
    held-out losses as (step, tokens, loss, held-out data), and its training losses as (step, loss). Of a step that a resumed run repeated,
    the last record counts. A held-out loss before the run's first step belongs to the stage before."""
    last, curve, losses, shares, seconds, tokens, work = {}, {}, {}, {}, {}, {}, {}
    taking_part = collections.defaultdict(dict)
    for record in lines(folder / "metrics.jsonl"):
        last.update(record)
        step = record.get("step")
        for key, of_step in (("seconds", seconds), ("attended_share", shares), ("loss", losses)):
            if record.get(key) is not None:
                of_step[step] = record[key]
        for key in record:
            if key.startswith("participation_") and record[key] is not None:
                taking_part[key][step] = record[key]
        if record.get("seconds") is not None:
            tokens[step], work[step] = record.get("tokens", 0), record["seconds"] * record.get("tflops", 0)
        if record.get("eval_loss") is not None and "tokens_so_far" in last:
            curve[step] = (step, last["tokens_so_far"], record["eval_loss"], record.get("eval_data", ""))
    said = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {}
    said = {key: said.get(key, "") for key in ("program", "hardware", "parameters")}
    said["hardware"] = said["hardware"].split(";")[0]  # not the names of hosts
    share = f"{sum(shares.values()) / len(shares):.4f}" if shares else ""
    spent = sum(seconds.values())
    said |= {"seconds": round(spent, 2), "attended_share": share}
    said |= {key: round(sum(of_step.values()) / len(of_step), 5) for key, of_step in taking_part.items()}
    if spent:
        said["tokens_per_s"] = round(sum(tokens.values()) / spent)
        said["tflops"] = round(sum(work.values()) / spent, 3) or ""
    return {**last, **said}, [curve[step] for step in sorted(curve)], sorted(losses.items())


def write(path, head, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
    print(f"{path}: {len(rows)} rows")


def number(x):
    return f"{x:.4f}".rstrip("0").rstrip(".")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("study", type=pathlib.Path, help="output_dir of the study")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--losses", type=int, nargs=2, metavar=("FIRST", "LAST"), default=(1, 0),
                        help="write losses.csv with the training losses of these steps")
    parser.add_argument("--stopped", action="store_true", help="also runs that have not finished")
    args = parser.parse_args()
    if not (args.study / "runs").is_dir():
        parser.error(f"{args.study} has no folder runs: it must be the output_dir of a study")
    args.output.mkdir(parents=True, exist_ok=True)
    samples, positions, mass, needles, runs, curves, losses, layers = [], [], [], [], [], [], [], []
    for folder in sorted((args.study / "runs").iterdir()):
        finished = (args.study / "runs" / (folder.name + ".finished")).exists()
        if not (folder / "metrics.jsonl").exists() or not finished and not args.stopped:
            continue
        name = name_of(folder)
        if not name[0]:
            continue
        found, masses, items = records(folder / "suites.jsonl")
        for (attention, sample), sums in sorted(summed(found, lambda a, n, e, t: (a, n)).items()):
            samples.append(name + [attention, sample] + [number(x) for x in sums])
        for (attention, end, task), sums in sorted(summed(found, lambda a, n, e, t: (a, e, t)).items()):
            positions.append(name + [attention, end, task] + [number(x) for x in sums[:2]])
        needles += [name + [*cell, *sums] for cell, sums in sorted(passed(items).items())]
        shares = collections.defaultdict(lambda: [0.0, 0.0])
        for (attention, _, layer, task), record in masses.items():
            shares[attention, layer, task][0] += record["weight"]
            shares[attention, layer, task][1] += record["mass"]
        mass += [name + [*key] + [number(x) for x in sums] for key, sums in sorted(shares.items())]
        said, curve, course = training(folder)
        runs.append(name + [said.get(key, "") for key in RUN_KEYS] + [int(finished)])
        of_layers = ("eval_reach", "eval_gate_recall", "participation")
        for layer in sorted({int(key.rpartition("_")[2]) for key in said if key.rpartition("_")[0] in of_layers}):
            layers.append(name + [layer, *(said.get(f"{key}_{layer}", "") for key in of_layers)])
        curves += [name + [*point[:3], int(finished), point[3]] for point in curve]
        losses += [name + list(point) for point in course if args.losses[0] <= point[0] <= args.losses[1]]
    if samples:
        write(args.output / "samples.csv", ["arm", "seed", "attention", "sample", "weight", "nll", "far_weight", "far_nll"], samples)
        write(args.output / "positions.csv", ["arm", "seed", "attention", "end", "task", "weight", "nll"], positions)
    if mass:
        write(args.output / "mass.csv", ["arm", "seed", "attention", "layer", "rule", "pairs", "mass"], mass)
    if needles:
        write(args.output / "needles.csv", ["arm", "seed", "attention", "task", "length", "depth", "items", "passed"], needles)
    write(args.output / "curves.csv", ["arm", "seed", "step", "tokens", "eval_loss", "finished", "eval_data"], curves)
    write(args.output / "runs.csv", ["arm", "seed", *RUN_KEYS, "finished"], runs)
    if layers:
        write(args.output / "layers.csv", ["arm", "seed", "layer", "reach", "gate_recall", "participation"], layers)
    if losses:
        write(args.output / "losses.csv", ["arm", "seed", "step", "loss"], losses)


if __name__ == "__main__":
    main()
