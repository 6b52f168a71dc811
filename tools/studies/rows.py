#!/usr/bin/env python3
"""The raw rows of a study, small enough for the repository: what its figures and tables are drawn from.

    python3 tools/studies/rows.py runs/studies/1_scaling_xs -o docs/studies/1_scaling_xs

From the records of `eval --suite position` in every finished run (docs/evaluation.md) it writes
    samples.csv    per arm, seed, attention and held-out sample: weight and sum of nll, of all tokens and of far repeats
    positions.csv  per arm, seed, attention, last position of the bin and kind of token: the same, over all samples
    curves.csv     per arm, seed and evaluation while training: step, tokens so far, held-out loss
    runs.csv       per arm and seed: steps, tokens, losses, seconds, speed, and program, commit and hardware
"""
import argparse
import collections
import csv
import json
import pathlib

RUN_KEYS = ("step", "tokens_so_far", "loss", "eval_loss", "seconds", "tokens_per_s", "tflops", "parameters", "program",
            "hardware")

def records(path):
    """Records of the position suite by (attention, sample, bin, task): of a repeated evaluation the last."""
    found = {}
    if path.exists():
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["suite"] == "position" and record.get("nll") is not None:
                found[record["attention"], record["number"], record["end"], record["task"]] = record
    return found


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


def settings_of(folder):
    """{"arm": ..., "seed": ...} and what else the name of a run's folder says."""
    return dict(part.split("=", 1) for part in folder.name.split(",") if "=" in part)


def training(folder):
    """What the run logged last, the sum of its seconds, and its held-out losses as (step, tokens, loss)."""
    last, curve, speeds = {}, [], []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        last.update(record)
        speeds.append((record.get("tokens", 0), record.get("seconds", 0.0)))
        if record.get("eval_loss") is not None:
            curve.append((record["step"], last.get("tokens_so_far", 0), record["eval_loss"]))
    seconds = sum(time for _, time in speeds)
    said = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {}
    said = {key: said.get(key, "") for key in ("program", "hardware", "parameters")}
    return {**last, **said, "seconds": round(seconds, 2)}, curve


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
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    samples, positions, runs, curves = [], [], [], []
    for folder in sorted((args.study / "runs").iterdir()):
        if not folder.is_dir() or not (args.study / "runs" / (folder.name + ".finished")).exists():
            continue
        settings = settings_of(folder)
        name = [settings.get("arm", ""), settings.get("seed", "")]
        if not name[0]:
            continue
        found = records(folder / "suites.jsonl")
        for (attention, sample), sums in sorted(summed(found, lambda a, n, e, t: (a, n)).items()):
            samples.append(name + [attention, sample] + [number(x) for x in sums])
        for (attention, end, task), sums in sorted(summed(found, lambda a, n, e, t: (a, e, t)).items()):
            positions.append(name + [attention, end, task] + [number(x) for x in sums[:2]])
        said, curve = training(folder)
        runs.append(name + [said.get(key, "") for key in RUN_KEYS])
        curves += [name + list(point) for point in curve]
    write(args.output / "samples.csv", ["arm", "seed", "attention", "sample", "weight", "nll", "far_weight", "far_nll"], samples)
    write(args.output / "positions.csv", ["arm", "seed", "attention", "end", "task", "weight", "nll"], positions)
    write(args.output / "curves.csv", ["arm", "seed", "step", "tokens", "eval_loss"], curves)
    write(args.output / "runs.csv", ["arm", "seed", *RUN_KEYS], runs)

if __name__ == "__main__":
    main()
