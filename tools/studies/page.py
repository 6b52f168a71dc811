#!/usr/bin/env python3
"""Table, matrix and figure of a study from its raw rows, without a GPU.

    python3 tools/studies/page.py docs/studies/1_scaling_xs --base full -o docs/studies/1_scaling_xs

Reads samples.csv of rows.py, and mass.csv and needles.csv where there are any, and writes table.md and figure.svg. Arms of one seed
share initial weights, the order of samples and the held-out samples, so the loss of an arm is compared with the base arm's in pairs: differences per
held-out sample, their mean weighted by tokens, 95% intervals by bootstrap over samples (2,000 draws; each draw takes
the same samples in every arm and seed). The seeds' spread stands beside it.
"""
import argparse
import collections
import csv
import pathlib
import random

DRAWS = 2000
COLUMNS = {"all tokens": ("weight", "nll"), "far repeats": ("far_weight", "far_nll")}


def read(path):
    """{(arm, attention): {seed: {sample: row}}}"""
    table = collections.defaultdict(lambda: collections.defaultdict(dict))
    with path.open() as file:
        for row in csv.DictReader(file):
            numbers = {key: float(row[key]) for key in ("weight", "nll", "far_weight", "far_nll")}
            table[row["arm"], row["attention"]][row["seed"]][row["sample"]] = numbers
    return table


def own_attention(table, arm):
    """What the arm was trained with: beside it stands full attention on the same weights."""
    kinds = [attention for name, attention in table if name == arm]
    trained = [kind for kind in kinds if kind != "full"]
    if arm.startswith("full") or not trained:
        return "full"
    for kind in trained:
        if kind.split(" ")[0] in (arm, arm.split("_")[0]):
            return kind
    return next((kind for kind in trained if kind.startswith("moba")), trained[0])


def mean(rows, column):
    weight, nll = COLUMNS[column]
    total = sum(row[weight] for row in rows)
    return sum(row[nll] for row in rows) / total if total else float("nan")


def paired(seeds, base, column, samples):
    """Over seeds that both have: the difference of losses on these samples."""
    common = sorted(seeds.keys() & base.keys())
    differences = [mean([seeds[s][i] for i in samples], column) - mean([base[s][i] for i in samples], column) for s in common]
    return differences


class Comparison:
    """An arm against the base: difference, interval, spread of seeds."""

    def __init__(self, seeds, base, column, draws=DRAWS):
        shared = [set(rows) for rows in (*seeds.values(), *base.values())]
        self.samples = sorted(set.intersection(*shared)) if shared else []
        self.by_seed = paired(seeds, base, column, self.samples) if self.samples else []
        self.difference = sum(self.by_seed) / len(self.by_seed) if self.by_seed else float("nan")
        self.low, self.high = self.interval(seeds, base, column, draws)

    def interval(self, seeds, base, column, draws):
        common = sorted(seeds.keys() & base.keys())
        if not common or not self.samples:
            return float("nan"), float("nan")
        weight, nll = COLUMNS[column]
        sums = [[(seeds[s][i][nll], seeds[s][i][weight], base[s][i][nll], base[s][i][weight]) for i in self.samples]
                for s in common]
        draw, found = random.Random(20251), []
        for _ in range(draws):
            chosen = draw.choices(range(len(self.samples)), k=len(self.samples))
            total = 0.0
            for rows in sums:
                a, b, c, d = (sum(rows[i][k] for i in chosen) for k in range(4))
                total += (a / b - c / d) if b and d else 0.0
            found.append(total / len(sums))
        found.sort()
        return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]


def compare(table, base, draws=DRAWS):
    """[(arm, {column: Comparison}, {column: loss})] of arms with their own attention, the base first."""
    arms = sorted({arm for arm, _ in table}, key=lambda arm: (arm != base, arm))
    found = []
    for arm in arms:
        seeds = table[arm, own_attention(table, arm)]
        losses = {column: sum(mean(rows.values(), column) for rows in seeds.values()) / len(seeds) for column in COLUMNS}
        against = {} if arm == base else {
            column: Comparison(seeds, table[base, own_attention(table, base)], column, draws) for column in COLUMNS}
        found.append((arm, against, losses, len(seeds)))
    return found


def markdown(found, base):
    text = f"| arm | seeds | loss | minus {base}, all tokens | loss, far repeats | minus {base}, far repeats |\n"
    text += "|---|---|---|---|---|---|\n"
    for arm, against, losses, seeds in found:
        cells = [arm, str(seeds)]
        for column in COLUMNS:
            cells.append(f"{losses[column]:.4f}")
            c = against.get(column)
            spread = f"; seeds {min(c.by_seed):+.4f} to {max(c.by_seed):+.4f}" if c and len(c.by_seed) > 1 else ""
            cells.append(f"{c.difference:+.4f} [{c.low:+.4f}, {c.high:+.4f}]{spread}" if c else "")
        text += f"| {' | '.join(cells)} |\n"
    return text


def matrix(table):
    """Weights by arm, attention at evaluation; empty where every arm was only evaluated as trained and in full."""
    attentions = sorted({attention for _, attention in table})
    if len(attentions) < 3:
        return ""
    text = ""
    for column in COLUMNS:
        text += f"\nLoss of {column}: rows are weights, columns the attention they are evaluated with.\n\n"
        text += f"| trained as | {' | '.join(attentions)} |\n|---|{'---|' * len(attentions)}\n"
        for arm in sorted({arm for arm, _ in table}):
            cells = []
            for attention in attentions:
                seeds = table.get((arm, attention))
                cells.append(f"{sum(mean(r.values(), column) for r in seeds.values()) / len(seeds):.4f}" if seeds else "")
            text += f"| {arm} | {' | '.join(cells)} |\n"
    return text


def gaps(rows, base):
    """Held-out loss while training, minus the base arm's of the same seed: mean over seeds, by tokens."""
    if not (rows / "curves.csv").exists():
        return ""
    losses = collections.defaultdict(dict)
    with (rows / "curves.csv").open() as file:
        for row in csv.DictReader(file):
            losses[row["arm"]][row["seed"], int(row["tokens"])] = float(row["eval_loss"])
    steps = sorted({tokens for _, tokens in losses[base]})
    if not steps:
        return ""
    text = f"\nHeld-out loss while training, minus that of {base}, by millions of tokens.\n\n"
    text += f"| arm | {' | '.join(f'{tokens / 1e6:.1f}' for tokens in steps)} |\n|---|{'---|' * len(steps)}\n"
    for arm in sorted(losses.keys() - {base}):
        cells = []
        for tokens in steps:
            seeds = [s for s, at in losses[arm] if at == tokens and (s, at) in losses[base]]
            found = [losses[arm][s, tokens] - losses[base][s, tokens] for s in seeds]
            cells.append(f"{sum(found) / len(found):+.4f}" if found else "")
        text += f"| {arm} | {' | '.join(cells)} |\n"
    return text


def sums(path, key_of, columns):
    """{key: [sum of each column]} of a CSV file; nothing of one that is not there."""
    cells = collections.defaultdict(lambda: [0.0] * len(columns))
    if path.exists():
        with path.open() as file:
            for row in csv.DictReader(file):
                cell = cells[key_of(row)]
                for i, column in enumerate(columns):
                    cell[i] += float(row[column])
    return cells


def needles(rows):
    """Share of the items passed by length, over seeds and depths: of suite needle as one, of ruler by task."""
    task = lambda row: "needle" if row["task"].startswith("needle") else row["task"]
    cells = sums(rows / "needles.csv", lambda row: (task(row), row["arm"], row["attention"], int(row["length"])),
                 ("items", "passed"))
    if not cells:
        return ""
    lengths = sorted({length for *_, length in cells})
    text = "\nItems passed, by tokens read.\n\n"
    text += f"| task | arm | attention | {' | '.join(str(n) for n in lengths)} |\n|---|---|---|{'---|' * len(lengths)}\n"
    for name in sorted({tuple(name) for *name, _ in cells}):
        found = [cells.get((*name, length)) for length in lengths]
        shares = [f"{100 * cell[1] / cell[0]:.1f}% of {cell[0]:.0f}" if cell else "" for cell in found]
        text += f"| {' | '.join(name)} | {' | '.join(shares)} |\n"
    return text


def masses(rows):
    """Share of full attention inside the blocks of each rule, over layers and seeds."""
    cells = sums(rows / "mass.csv", lambda row: (row["arm"], row["attention"], row["rule"]), ("pairs", "mass"))
    if not cells:
        return ""
    known = ("local", "gate", "gate_first", "nearest", "sink_nearest", "random", "best")
    rules = sorted({rule for *_, rule in cells}, key=known.index)
    text = "\nShare of full attention's softmax inside the blocks, the local one included, over all layers.\n\n"
    text += f"| arm | attention | {' | '.join(rules)} |\n|---|---|{'---|' * len(rules)}\n"
    for name in sorted({tuple(name) for *name, _ in cells}):
        found = [cells.get((*name, rule)) for rule in rules]
        text += f"| {' | '.join(name)} | {' | '.join(f'{100 * c[1] / c[0]:.1f}%' if c else '' for c in found)} |\n"
    return text


def svg(found, base):
    """Differences to the base with their intervals: one row an arm, far repeats below all tokens."""
    rows = [(arm, against) for arm, against, _, _ in found if against]
    if not rows:
        return ""
    reach = [x for _, against in rows for c in against.values() for x in (c.low, c.high, 0.0)]
    low, high = min(reach), max(reach)
    pad = 0.05 * (high - low or 1)
    low, high = low - pad, high + pad
    left, width, row = 150, 470, 34
    place = lambda x: left + (x - low) / (high - low) * width
    height = row * len(rows) + 62
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {height}" '
             'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="#fff"/>',
             f'<line x1="{place(0):.1f}" y1="20" x2="{place(0):.1f}" y2="{height - 40}" stroke="#999"/>']
    for i, (arm, against) in enumerate(rows):
        y = 30 + row * i
        parts.append(f'<text x="{left - 10}" y="{y + 8}" text-anchor="end">{arm}</text>')
        for offset, (column, colour) in ((0, ("all tokens", "#2a6fb0")), (11, ("far repeats", "#c2571a"))):
            c = against[column]
            parts.append(f'<line x1="{place(c.low):.1f}" x2="{place(c.high):.1f}" y1="{y + offset}" y2="{y + offset}" '
                         f'stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{place(c.difference):.1f}" cy="{y + offset}" r="3.5" fill="{colour}"/>')
    for k in range(5):
        x = low + (high - low) * k / 4
        parts.append(f'<text x="{place(x):.1f}" y="{height - 24}" text-anchor="middle" fill="#555">{x:+.3f}</text>')
    parts.append(f'<text x="{left}" y="{height - 6}"><tspan fill="#2a6fb0">all tokens</tspan> and '
                 f'<tspan fill="#c2571a">far repeats</tspan>: loss minus that of {base}, nats, 95%</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", type=pathlib.Path, help="folder of samples.csv")
    parser.add_argument("--base", default="full", help="arm that the others are compared with")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--draws", type=int, default=DRAWS)
    args = parser.parse_args()
    table = read(args.rows / "samples.csv")
    if not any(arm == args.base for arm, _ in table):
        parser.error(f"{args.rows / 'samples.csv'} has no arm {args.base}")
    found = compare(table, args.base, args.draws)
    args.output.mkdir(parents=True, exist_ok=True)
    text = markdown(found, args.base) + matrix(table) + gaps(args.rows, args.base)
    text += masses(args.rows) + needles(args.rows)
    (args.output / "table.md").write_text(text)
    (args.output / "figure.svg").write_text(svg(found, args.base))
    print(text, end="")


if __name__ == "__main__":
    main()
