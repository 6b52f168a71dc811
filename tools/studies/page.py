#!/usr/bin/env python3
"""Table, matrix and figure of a study from its raw rows, without a GPU.

    python3 tools/studies/page.py docs/studies/1_scaling_xs --base full -o docs/studies/1_scaling_xs

Reads what there is of rows.py's samples.csv, positions.csv, mass.csv, needles.csv, curves.csv, losses.csv and runs.csv,
and writes table.md, figure.svg and matrix.svg (from samples.csv), gap.svg (from curves.csv) and needles.svg. Arms of one seed share
initial weights, the order of samples and the held-out samples, so the loss of an arm is compared with the base arm's in
pairs: differences per held-out sample, their mean weighted by tokens, 95% intervals by bootstrap over samples (2,000
draws; each draw takes the same samples in every arm and seed). The seeds' spread stands beside it, and from three seeds
on the 95% interval of their mean by Student's t.

The gap is the held-out loss while training minus the base arm's. Three laws are fitted to it by least squares. A column
`finished` of curves.csv, if any, has 0 in rows of runs that were stopped: their curves are drawn dashed and not fitted.
"""
import argparse
import collections
import csv
import math
import pathlib
import random
import statistics
import sys

DRAWS = 2000
COLOURS = ("#2a6fb0", "#c2571a", "#3a8f4d", "#8a4fb0", "#b03a4f", "#7a6a1f", "#1f8a8a", "#d06aa8", "#555", "#e0a100",
           "#84c441", "#6b4226")
COLUMN_COLOURS = {"all tokens": "#2a6fb0", "far repeats": "#c2571a"}
COLUMNS = {"all tokens": ("weight", "nll"), "far repeats": ("far_weight", "far_nll")}  # main() drops what has no tokens


def read(path):
    """{(arm, attention): {seed: {sample: row}}}. Ends the program where arms were not evaluated on the same samples: their
    losses do not compare. A stage that was evaluated on others is left out."""
    table = collections.defaultdict(lambda: collections.defaultdict(dict))
    with path.open() as file:
        for row in csv.DictReader(file):
            numbers = {key: float(row[key]) for key in ("weight", "nll", "far_weight", "far_nll")}
            of_run = table[row["arm"], row["attention"]][row["seed"]]
            name = f"{path}: sample {row['sample']} of arm {row['arm']}, seed {row['seed']}, attention {row['attention']}"
            if row["sample"] in of_run:
                sys.exit(f"{name} is there twice")
            if not all(map(math.isfinite, numbers.values())):
                sys.exit(f"{name} has a value that is not finite")
            of_run[row["sample"]] = numbers
    weights = lambda rows: {sample: (row["weight"], row["far_weight"]) for sample, row in rows.items()}
    first = None
    for arm, attention in sorted(table, key=lambda key: is_stage(key[0])):
        for seed, rows in table[arm, attention].items():
            first = first or (f"arm {arm}, seed {seed}, attention {attention}", weights(rows))
            if weights(rows) == first[1]:
                continue
            if not is_stage(arm):
                sys.exit(f"{path}: arm {arm}, seed {seed}, attention {attention} was evaluated on other samples than {first[0]}")
            table[arm, attention] = {}
    return {key: seeds for key, seeds in table.items() if seeds}


OWN = {}  # --own


def own_attention(table, arm):
    """What the arm was trained with at last: beside it stands full attention on the same weights."""
    kinds = [attention for name, attention in table if name == arm]
    if arm in OWN:
        return OWN[arm]
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


def middle_95(drawn):
    """(low, high) between which 95% of the drawn values lie."""
    drawn = sorted(drawn)
    return drawn[int(0.025 * len(drawn))], drawn[int(0.975 * len(drawn)) - 1]


def sheet(width, height):
    """The first parts of a picture."""
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="#fff"/>']


class Comparison:
    """An arm against the base: difference, interval, spread of seeds."""

    def __init__(self, seeds, base, column, draws=DRAWS):
        self.seeds = sorted(seeds.keys() & base.keys())
        self.samples = sorted(next(iter(seeds.values())))  # read() has seen to it that all runs have the same
        self.by_seed = paired(seeds, base, column, self.samples)
        self.difference = sum(self.by_seed) / len(self.by_seed) if self.by_seed else float("nan")
        self.low, self.high = self.interval(seeds, base, column, draws)

    def interval(self, seeds, base, column, draws):
        if not self.seeds:
            return float("nan"), float("nan")
        weight, nll = COLUMNS[column]
        sums = [[(seeds[s][i][nll], seeds[s][i][weight], base[s][i][nll], base[s][i][weight]) for i in self.samples]
                for s in self.seeds]
        draw, found = random.Random(20251), []
        for _ in range(draws):
            chosen = draw.choices(range(len(self.samples)), k=len(self.samples))
            drawn = [[sum(rows[i][k] for i in chosen) for k in range(4)] for rows in sums]
            if all(b and d for _, b, _, d in drawn):  # of few samples with such tokens a draw may have none
                found.append(sum(a / b - c / d for a, b, c, d in drawn) / len(sums))
        return middle_95(found) if found else (float("nan"), float("nan"))


# Student's t, 97.5%, by degrees of freedom from 1 on
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
           2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def student(by_seed):
    """95% interval of the mean of 3 to 31 seeds; empty for other numbers of them."""
    if not 3 <= len(by_seed) <= len(STUDENT) + 1:
        return ""
    half = STUDENT[len(by_seed) - 2] * statistics.stdev(by_seed) / math.sqrt(len(by_seed))
    middle = sum(by_seed) / len(by_seed)
    return f"[{middle - half:+.4f}, {middle + half:+.4f}]"


def of_seeds(by_seed):
    """Spread of the seeds, and from three on the interval of their mean."""
    if len(by_seed) < 2:
        return ""
    text = f"; seeds {min(by_seed):+.4f} to {max(by_seed):+.4f}"
    interval = student(by_seed)
    return f"{text}, t {interval}" if interval else text


def scatter(found):
    """How far seeds scatter: the standard deviation of one seed's difference between two arms, and the 95% interval that it
    gives a mean of as many seeds as arms have. It comes from the residuals of all arms' losses around the means of their
    arm and of their seed, so what a seed changes alike in all arms falls out, and no arm is the base. It assumes that all
    arms scatter alike: the arm with the largest share of the squares is named. Of the arms that have as many seeds as any,
    stages left out."""
    text = ""
    for column in COLUMNS:
        arms = [(arm, against.get(column)) for arm, against, *_ in found if not is_stage(arm)]
        seeds = max((c.seeds for _, c in arms if c), key=len, default=[])
        rows = {arm: c.by_seed if c else [0.0] * len(seeds) for arm, c in arms if not c or c.seeds == seeds}  # minus the base's
        degrees = (len(rows) - 1) * (len(seeds) - 1)
        if degrees < 1:
            continue
        of_seed = [statistics.fmean(row[s] for row in rows.values()) for s in range(len(seeds))]
        middle = statistics.fmean(of_seed)
        squares = {arm: sum((x - statistics.fmean(row) - mean_of_seed + middle) ** 2 for x, mean_of_seed in zip(row, of_seed))
                   for arm, row in rows.items()}
        deviation = math.sqrt(2 * sum(squares.values()) / degrees)
        largest = max(squares, key=squares.get)
        share = squares[largest] / sum(squares.values()) if deviation else 0
        t = STUDENT[min(degrees, len(STUDENT)) - 1]
        counts = sorted({len(c.seeds) for _, c in arms if c and c.seeds})
        means = ", ".join(f"±{t * deviation / math.sqrt(n):.4f} ({n} seeds)" for n in counts)
        text += (f"\nStandard deviation of one seed's difference between two arms, {column}, from {len(rows)} arms: "
                 f"{deviation:.4f} ({degrees} degrees of freedom; {largest} has {100 * share:.0f}% of the squares). 95% interval of a mean "
                 f"difference by it: {means}.\n")
    return text


def compare(table, base, draws=DRAWS):
    """[(arm, {column: Comparison}, {column: loss})] of arms with their own attention, the base first."""
    arms = sorted({arm for arm, _ in table}, key=lambda arm: (arm != base, arm))
    found = []
    for arm in arms:
        seeds = table[arm, own_attention(table, arm)]
        if not seeds.keys() & table[base, own_attention(table, base)].keys():
            sys.exit(f"arm {arm} has no seed of arm {base}")
        losses = {column: sum(mean(rows.values(), column) for rows in seeds.values()) / len(seeds) for column in COLUMNS}
        against = {} if arm == base else {
            column: Comparison(seeds, table[base, own_attention(table, base)], column, draws) for column in COLUMNS}
        found.append((arm, against, losses, len(seeds)))
    return found


def markdown(found, base):
    heads = [f"loss{'' if column == 'all tokens' else f', {column}'} | minus {base}, {column}" for column in COLUMNS]
    text = f"| arm | seeds | {' | '.join(heads)} |\n|---|---|{'---|---|' * len(COLUMNS)}\n"
    for arm, against, losses, seeds in found:
        cells = [arm, str(seeds)]
        for column in COLUMNS:
            cells.append(f"{losses[column]:.4f}")
            c = against.get(column)
            pairs = f", {len(c.seeds)} pairs" if c and len(c.seeds) < seeds else ""
            cells.append(f"{c.difference:+.4f} [{c.low:+.4f}, {c.high:+.4f}]{pairs}{of_seeds(c.by_seed)}" if c else "")
        text += f"| {' | '.join(cells)} |\n"
    return text


def matrix(table, draws=DRAWS):
    """Weights by arm, attention at evaluation; empty where every arm was only evaluated as trained and in full."""
    attentions = sorted({attention for _, attention in table})
    if len(attentions) < 3:
        return ""
    text = ""
    for column in COLUMNS:
        text += f"\nLoss of {column}: rows are weights, columns the attention they are evaluated with. In brackets: minus the "
        text += "loss with the attention of training, and half of its 95% interval.\n\n"
        text += f"| trained as | {' | '.join(attentions)} |\n|---|{'---|' * len(attentions)}\n"
        for arm in sorted({arm for arm, _ in table}):
            cells = []
            for attention in attentions:
                seeds = table.get((arm, attention))
                if not seeds:
                    cells.append("")
                    continue
                cell = f"{sum(mean(r.values(), column) for r in seeds.values()) / len(seeds):.4f}"
                if attention != own_attention(table, arm):
                    c = Comparison(seeds, table[arm, own_attention(table, arm)], column, draws)
                    cell += f" ({c.difference:+.4f} ± {(c.high - c.low) / 2:.4f})"
                cells.append(cell)
            text += f"| {arm} | {' | '.join(cells)} |\n"
    return text


def positions(rows, table, base):
    """Loss by position with the attention of training, minus the base arm's, over all samples and the seeds of both."""
    cells = sums(rows / "positions.csv", lambda row: (row["arm"], row["attention"], row["seed"], int(row["end"])),
                 ("weight", "nll"))
    ends = sorted({end for *_, end in cells})
    if len(ends) < 2:
        return ""

    def loss(arm, end, seeds):
        found = [cells.get((arm, own_attention(table, arm), seed, end)) for seed in seeds]
        weight = sum(cell[0] for cell in found if cell)
        return sum(cell[1] for cell in found if cell) / weight if weight else float("nan")

    seeds_of = lambda arm: set(table[arm, own_attention(table, arm)])
    ranges = [f"{first + 1} to {last}" for first, last in zip([0, *ends], ends)]
    text = f"\nLoss by position, the first is 1: of {base}, and of the others minus it.\n\n"
    text += f"| arm | {' | '.join(ranges)} |\n|---|{'---|' * len(ends)}\n"
    for arm in sorted({arm for arm, _ in table}, key=lambda arm: (arm != base, arm)):
        seeds = sorted(seeds_of(arm) & seeds_of(base))
        found = [f"{loss(arm, end, seeds):.4f}" if arm == base else
                 f"{loss(arm, end, seeds) - loss(base, end, seeds):+.4f}" for end in ends]
        text += f"| {arm} | {' | '.join(found)} |\n"
    return text


def tokens_before(rows):
    """{seed: tokens of the stages that all arms go on from}, none where there are no such stages."""
    found = collections.Counter()
    if (rows / "runs.csv").exists():
        with (rows / "runs.csv").open() as file:
            for row in csv.DictReader(file):
                if is_stage(row["arm"]):
                    found[row["seed"]] = max(found[row["seed"]], int(row["tokens_so_far"] or 0))
    return found


def is_stage(arm):
    """Whether it is no arm but a stage that all arms go on from."""
    return arm.split()[0] == "before"


def courses(rows, base):
    """{arm: {tokens: held-out loss minus that of the base arm of the same seed, mean over seeds}}, tokens counted from
    where the arms part, and the arms that have a stopped run."""
    if not (rows / "curves.csv").exists():
        return {}, set()
    losses, stopped, start, held_out = collections.defaultdict(dict), set(), tokens_before(rows), {}  # hash and arm, by seed
    with (rows / "curves.csv").open() as file:
        for row in csv.DictReader(file):
            if not is_stage(row["arm"]):
                if data := row.get("eval_data"):
                    other, arm = held_out.setdefault(row["seed"], (data, row["arm"]))
                    if other != data:
                        sys.exit(f"{rows / 'curves.csv'}: seed {row['seed']}: arms {arm} and {row['arm']} were evaluated on "
                                 "different held-out data")
                losses[row["arm"]][row["seed"], int(row["tokens"]) - start[row["seed"]]] = float(row["eval_loss"])
            if row.get("finished") == "0":
                stopped.add(row["arm"])
    found = {base: dict.fromkeys((tokens for _, tokens in losses[base]), 0.0)} if base in losses else {}
    for arm in sorted(losses.keys() - {base}):
        at = collections.defaultdict(list)
        for (seed, tokens), loss in losses[arm].items():
            if (seed, tokens) in losses[base]:
                at[tokens].append(loss - losses[base][seed, tokens])
        pairs = len({seed for seed, _ in losses[arm]} & {seed for seed, _ in losses[base]})
        # A mean over fewer seeds would make a jump.
        found[arm] = {tokens: sum(gap) / len(gap) for tokens, gap in sorted(at.items()) if len(gap) == pairs}
    return found, stopped


def gaps(found, stopped, base):
    """The gaps of courses() by tokens."""
    steps = sorted(found.get(base, ()))
    if not steps:
        return ""
    text = f"\nHeld-out loss while training, minus that of {base}, by millions of tokens.\n\n"
    text += f"| arm | {' | '.join(f'{tokens / 1e6:.1f}' for tokens in steps)} |\n|---|{'---|' * len(steps)}\n"
    for arm in sorted(found.keys() - {base}):
        cells = [f"{found[arm][tokens]:+.4f}" if tokens in found[arm] else "" for tokens in steps]
        text += f"| {arm}{' (stopped)' if arm in stopped else ''} | {' | '.join(cells)} |\n"
    return text


def first_step(rows, base):
    """Training loss of step 1, before any update, minus that of the base arm."""
    losses = {}
    if (rows / "losses.csv").exists():
        with (rows / "losses.csv").open() as file:
            losses = {(r["arm"], r["seed"]): float(r["loss"]) for r in csv.DictReader(file) if r["step"] == "1"}
    found = collections.defaultdict(list)
    for (arm, seed), loss in losses.items():
        if arm != base and (base, seed) in losses:
            found[arm].append(loss - losses[base, seed])
    if not found:
        return ""
    text = f"\nTraining loss of step 1, before any update, minus that of {base}.\n\n| arm | gap |\n|---|---|\n"
    return text + "".join(f"| {arm} | {sum(gap) / len(gap):+.4f} |\n" for arm, gap in sorted(found.items()))


def speeds(rows, found, stopped, base, switched=()):
    """Finished arms: tokens per second of training, executed FLOPs per token, and the last loss minus the base arm's of
    the same seed after as many tokens, FLOPs and seconds, interpolated over the logarithm of tokens. Means over the seeds
    of both. No FLOPs of `switched` arms, whose rows may have those of the last step alone. Nothing beside a base with a
    stopped run."""
    if base in stopped or not (rows / "runs.csv").exists() or len(found.get(base, ())) < 3:
        return ""
    runs, curve, start = collections.defaultdict(dict), collections.defaultdict(list), tokens_before(rows)
    with (rows / "runs.csv").open() as file:
        for row in csv.DictReader(file):
            if row["arm"] in found and row["eval_loss"]:
                rate = "nan" if row["arm"] in switched else row.get("tflops") or "nan"
                flops = 1e12 * float(rate) / float(row.get("tokens_per_s") or "nan")
                tokens = int(row["tokens_so_far"]) - start[row["seed"]]
                seconds, loss = float(row["seconds"]), float(row["eval_loss"])
                runs[row["arm"]][row["seed"]] = (tokens, seconds, loss, flops)
    with (rows / "curves.csv").open() as file:
        for row in csv.DictReader(file):
            if row["arm"] == base:
                curve[row["seed"]].append((int(row["tokens"]) - start[row["seed"]], float(row["eval_loss"])))

    def base_loss(seed, reached):
        points = sorted(point for point in curve[seed] if point[0] > 0)
        for (a, high), (b, low) in zip(points, points[1:]):
            if a <= reached <= b:
                return high + (low - high) * math.log(reached / a) / math.log(b / a)
        return float("nan")

    average = lambda values: sum(values) / len(values) if values else float("nan")
    text = (f"\nSpeed and last loss, minus that of {base} after as many tokens, executed FLOPs and seconds. Where the "
            f"learning rate falls at the end, earlier losses of {base} are too high for the last two columns.\n\n")
    text += "| arm | tokens/s | FLOPs/token | tokens | FLOPs | seconds |\n|---|---|---|---|---|---|\n"
    for arm in sorted(runs.keys() - stopped, key=lambda arm: (arm != base, arm)):
        gaps = collections.defaultdict(list)
        for seed in runs[arm].keys() & runs[base].keys() if arm != base else ():
            tokens, seconds, loss, flops = runs[arm][seed]
            of_base = runs[base][seed]
            for axis, reached in (("tokens", tokens), ("FLOPs", tokens * flops / of_base[3]),
                                  ("seconds", seconds * of_base[0] / of_base[1])):
                gaps[axis].append(loss - base_loss(seed, reached))
        tokens, seconds, _, flops = (average(column) for column in zip(*runs[arm].values()))
        cells = [average(gaps[axis]) for axis in ("tokens", "FLOPs", "seconds")]
        cells = [f"{gap:+.4f}" if gap == gap else "" for gap in cells]
        work = f"{flops / 1e6:.1f}M" if flops == flops else ""
        text += f"| {arm} | {tokens / seconds:,.0f} | {work} | {' | '.join(cells)} |\n"
    return text


def line(xs, ys):
    """(intercept, slope, sum of squared residuals) of the least-squares line."""
    slope, intercept = statistics.linear_regression(xs, ys)
    return intercept, slope, sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys))


class Fits:
    """Laws of a gap over tokens, in units of 10M: log: a + b ln t, power: a t^-p, floor: c + a t^-p."""

    EXPONENTS = [i / 1000 for i in range(10, 3001)]

    def __init__(self, tokens, gap):
        t, n = [x / 1e7 for x in tokens], len(tokens)
        self.log = line([math.log(x) for x in t], gap)
        powers, floors = [], []
        for p in self.EXPONENTS:
            falls = [x ** -p for x in t]
            a = sum(f * y for f, y in zip(falls, gap)) / sum(f * f for f in falls)
            powers.append((sum((y - a * f) ** 2 for f, y in zip(falls, gap)), a, p))
            c, slope, squares = line(falls, gap)
            floors.append((squares, c, slope, p))
        self.power, self.floor = min(powers), min(floors)
        # Constants within two standard errors, if residuals were independent; open below where the exponent's limit is
        near = [floor for floor in floors if floor[0] <= self.floor[0] * (1 + 4 / (n - 3))]
        self.low, self.high = min(floor[1] for floor in near), max(floor[1] for floor in near)
        self.open = floors[0] in near
        self.rms = [math.sqrt(squares / n) for squares in (self.log[2], self.power[0], self.floor[0])]


def apart(points):
    """Without those that the next one follows within 2% of its tokens: nearly the same weights would count twice."""
    return [a for a, b in zip(points, points[1:]) if a[0] < 0.98 * b[0]] + points[-1:]


def laws(found, stopped, base):
    """Fits of finished arms with enough points and gaps above zero; none beside a base with a stopped run."""
    text = ""
    if base in stopped:
        return text
    for arm in sorted(found.keys() - stopped - {base}):
        points = apart([(tokens, gap) for tokens, gap in found[arm].items() if tokens > 0])
        if len(points) < 6 or min(gap for _, gap in points) <= 0:
            continue
        f = Fits(*zip(*points))
        _, a, p = f.power
        _, c, slope, q = f.floor
        plus = lambda x: f"{'-' if x < 0 else '+'} {abs(x):.4f}"
        low = "below 0" if f.open or f.low < 0 else f"{f.low:.4f}"
        text += (f"| {arm} | {f.log[0]:.4f} {plus(f.log[1])} ln t | {1e4 * f.rms[0]:.1f} | {a:.4f} t^-{p:.3f} | "
                 f"{1e4 * f.rms[1]:.1f} | {c:.4f} {plus(slope)} t^-{q:.2f} | {1e4 * f.rms[2]:.1f} | {low} to {f.high:.4f} |\n")
    if not text:
        return ""
    return ("\nLaws of the gap, t in units of 10M tokens. After each: root mean square of its residuals, in 1e-4 nat. Last: "
            "constants within two standard errors, if residuals were independent.\n\n"
            "| arm | log | rms | power | rms | power and constant | rms | constants |\n"
            "|---|---|---|---|---|---|---|---|\n" + text)


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


def needles_svg(rows):
    """Percent of suite needle's items passed over the tokens read, these on a logarithmic axis: a line for each arm."""
    cells = sums(rows / "needles.csv", lambda row: (row["task"].startswith("needle"), row["arm"], row["attention"],
                                                    int(row["length"])), ("items", "passed"))
    found = collections.defaultdict(dict)
    for (is_needle, arm, attention, length), (items, passed) in cells.items():
        if is_needle:
            found[f"{arm}: {attention}"][length] = 100 * passed / items
    lengths = sorted({length for shares in found.values() for length in shares})
    if len(lengths) < 2:
        return ""
    left, top, width, height = 60, 30, 400, 260
    across = lambda length: left + width * math.log(length / lengths[0]) / math.log(lengths[-1] / lengths[0])
    down = lambda share: top + height * (100 - share) / 100
    parts = [*sheet(left + width + 240, top + height + 50),
             '<text x="8" y="18">needles found, percent</text>',
             f'<text x="{left}" y="{top + height + 42}">tokens read</text>']
    for share in range(0, 101, 20):
        y = down(share)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{share}</text>')
    for length in lengths:
        name = f"{length // 1024}K" if length % 1024 == 0 else str(length)
        parts.append(f'<text x="{across(length):.1f}" y="{top + height + 20}" text-anchor="middle" fill="#555">{name}</text>')
    for i, (name, colour) in enumerate(zip(sorted(found), COLOURS * len(found))):
        dashes = f' stroke-dasharray="{2 + 3 * i} 3"' if i else ""  # lines may lie on each other
        points = " ".join(f"{across(length):.1f},{down(share):.1f}" for length, share in sorted(found[name].items()))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        y = top + 14 + 18 * i
        parts.append(f'<line x1="{left + width + 14}" x2="{left + width + 44}" y1="{y}" y2="{y}" stroke="{colour}" '
                     f'stroke-width="2"{dashes}/>')
        parts.append(f'<text x="{left + width + 50}" y="{y + 4}">{name}</text>')
    return "\n".join(parts) + "\n</svg>\n"


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
    parts = [*sheet(left + width + 20, height),
             f'<line x1="{place(0):.1f}" y1="20" x2="{place(0):.1f}" y2="{height - 40}" stroke="#999"/>']
    for i, (arm, against) in enumerate(rows):
        y = 30 + row * i
        parts.append(f'<text x="{left - 10}" y="{y + 8}" text-anchor="end">{arm}</text>')
        for offset, (column, c) in zip((0, 11), against.items()):
            colour = COLUMN_COLOURS[column]
            parts.append(f'<line x1="{place(c.low):.1f}" x2="{place(c.high):.1f}" y1="{y + offset}" y2="{y + offset}" '
                         f'stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{place(c.difference):.1f}" cy="{y + offset}" r="3.5" fill="{colour}"/>')
    for k in range(5):
        x = low + (high - low) * k / 4
        parts.append(f'<text x="{place(x):.1f}" y="{height - 24}" text-anchor="middle" fill="#555">{x:+.3f}</text>')
    names = " and ".join(f'<tspan fill="{COLUMN_COLOURS[column]}">{column}</tspan>' for column in COLUMNS)
    parts.append(f'<text x="{left}" y="{height - 6}">{names}: loss minus that of {base}, nats, 95%</text></svg>')
    return "\n".join(parts) + "\n"


def matrix_svg(table):
    """Loss of far repeats, or of all tokens where there are none, minus that with the attention of training: weights by
    arm, attention at evaluation, full layers of the arm not named. The darker, the worse; blue is better."""
    column = list(COLUMNS)[-1]
    kinds = sorted({attention.split(" + ")[0] for _, attention in table})
    if len(kinds) < 3:
        return ""
    cells = {}
    for (arm, attention), seeds in table.items():
        own = table[arm, own_attention(table, arm)]
        if attention != own_attention(table, arm):
            if by_seed := paired(seeds, own, column, next(iter(seeds.values()))):
                cells[arm, attention.split(" + ")[0]] = sum(by_seed) / len(by_seed)
    arms, most = sorted({arm for arm, _ in table}), max([abs(x) for x in cells.values()] or [1])
    left, top, width, height = 150, 46, 92, 26
    parts = [*sheet(left + width * len(kinds) + 10, top + height * len(arms) + 10),
             f'<text x="8" y="18">{column}: loss minus that with the attention of training, nats</text>']
    for j, kind in enumerate(kinds):
        parts.append(f'<text x="{left + width * (j + 0.5):.0f}" y="{top - 8}" text-anchor="middle">{kind}</text>')
    for i, arm in enumerate(arms):
        y = top + height * i
        parts.append(f'<text x="{left - 10}" y="{y + 17}" text-anchor="end">{arm}</text>')
        for j, kind in enumerate(kinds):
            x, value = left + width * j, cells.get((arm, kind))
            own = own_attention(table, arm).split(" + ")[0] == kind
            if value is None and not own:
                continue
            strength = 0 if own else min(abs(value) / most, 1) * 0.75
            colour = "#c2571a" if (value or 0) > 0 else "#2a6fb0"
            parts.append(f'<rect x="{x}" y="{y}" width="{width - 2}" height="{height - 2}" fill="{colour}" '
                         f'fill-opacity="{strength:.2f}" stroke="#bbb"/>')
            parts.append(f'<text x="{x + width / 2 - 1:.0f}" y="{y + 17}" text-anchor="middle">'
                         f'{"own" if own else f"{value:+.2f}"}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def gap_svg(found, stopped, base):
    """The gaps of courses() over tokens, these on a logarithmic axis. Stopped arms are dashed, names go by the last gap."""
    found = {arm: {tokens: gap for tokens, gap in found[arm].items() if tokens > 0} for arm in found if arm != base}
    arms = [arm for arm in found if len(found[arm]) > 1]
    if not arms:
        return ""
    first, last = (f(tokens for arm in arms for tokens in found[arm]) for f in (min, max))
    reach = [0.0, *(gap for arm in arms for gap in found[arm].values())]
    low, high = min(reach), max(reach)
    left, top, width, height = 60, 30, 480, 340
    across = lambda tokens: left + width * math.log(tokens / first) / math.log(last / first)
    down = lambda gap: top + height * (high - gap) / (high - low or 1)
    parts = [*sheet(left + width + 220, top + height + 50),
             f'<text x="8" y="18">held-out loss minus that of {base}, nats</text>',
             f'<text x="{left}" y="{top + height + 42}">tokens, millions</text>']
    step = 10 ** math.floor(math.log10(high - low or 1))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if (high - low) / s <= 7)
    for i in range(math.ceil(low / step), math.floor(high / step) + 1):
        y = down(i * step)
        colour = "#ddd" if i else "#999"
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{i * step:.3g}</text>')
    for tokens in sorted({m * 10 ** e for e in range(5, 13) for m in (1, 2, 5)}):
        if first * 0.97 <= tokens <= last * 1.03:
            parts.append(f'<text x="{across(tokens):.1f}" y="{top + height + 20}" text-anchor="middle" fill="#555">'
                         f'{tokens / 1e6:g}</text>')
    lowest = 0.0
    for arm, colour in sorted(zip(arms, COLOURS * len(arms)), key=lambda pair: -list(found[pair[0]].values())[-1]):
        dashes = ' stroke-dasharray="5 4"' if arm in stopped else ""
        points = " ".join(f"{across(tokens):.1f},{down(gap):.1f}" for tokens, gap in found[arm].items())
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        y = lowest = max(down(list(found[arm].values())[-1]), lowest + 15)
        parts.append(f'<line x1="{left + width + 10}" x2="{left + width + 34}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
                     f'stroke-width="2"{dashes}/>')
        name = f"{arm} (stopped)" if arm in stopped else arm
        parts.append(f'<text x="{left + width + 40}" y="{y + 4:.1f}">{name}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", type=pathlib.Path, help="folder of samples.csv or curves.csv")
    parser.add_argument("--base", default="full", help="arm that the others are compared with")
    parser.add_argument("--also", nargs="+", default=[], help="arms for a further comparison each")
    parser.add_argument("--own", nargs="+", default=[], metavar="ARM=ATTENTION",
                        help="the attention that an arm was trained with at last, where its name does not begin with it")
    parser.add_argument("--switched", nargs="+", default=[], metavar="ARM",
                        help="arms whose FLOPs are left out: their rows have those of the last step alone, and these vary")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--draws", type=int, default=DRAWS)
    args = parser.parse_args()
    table = read(args.rows / "samples.csv") if (args.rows / "samples.csv").exists() else {}
    for pair in args.own:
        arm, _, attention = pair.partition("=")
        if table and (arm, attention) not in table:
            parser.error(f"--own {pair}: {args.rows / 'samples.csv'} has no such arm and attention")
        OWN[arm] = attention
    for column, (weight, _) in list(COLUMNS.items()):
        if not any(row[weight] for seeds in table.values() for rows in seeds.values() for row in rows.values()):
            del COLUMNS[column]
    found, stopped = courses(args.rows, args.base)
    for arm in (args.base, *(args.also if table else ())):
        if arm not in ({arm for arm, _ in table} if table else found):
            parser.error(f"{args.rows / ('samples.csv' if table else 'curves.csv')} has no arm {arm}")
    for arm in args.switched:
        if arm not in found:
            parser.error(f"--switched {arm}: {args.rows / 'curves.csv'} has no such arm")
    args.output.mkdir(parents=True, exist_ok=True)
    text = ""
    if table:
        compared = compare(table, args.base, args.draws)
        text = markdown(compared, args.base) + scatter(compared)
        for arm in args.also:
            text += "\n" + markdown(compare(table, arm, args.draws), arm)
        text += positions(args.rows, table, args.base) + matrix(table, args.draws)
        (args.output / "figure.svg").write_text(svg(compared, args.base))
        if picture := matrix_svg(table):
            (args.output / "matrix.svg").write_text(picture)
    text += gaps(found, stopped, args.base) + first_step(args.rows, args.base) + laws(found, stopped, args.base)
    text += speeds(args.rows, found, stopped, args.base, args.switched)
    text += masses(args.rows) + needles(args.rows)
    if picture := needles_svg(args.rows):
        (args.output / "needles.svg").write_text(picture)
    (args.output / "table.md").write_text(text.lstrip("\n"))
    if picture := gap_svg(found, stopped, args.base):
        (args.output / "gap.svg").write_text(picture)
    print(text, end="")


if __name__ == "__main__":
    main()
