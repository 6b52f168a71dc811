#!/usr/bin/env python3
"""Study 5: blocks of MoBA merged by plain sums, as in its first version, against log-sum-exp. With PyTorch and numpy.

    python3 tools/studies/sum_merge.py --text bible.txt -o docs/studies/5_sum_merge_cpu
    python3 tools/studies/sum_merge.py --tokens data/study/train_long.bin -o OUT --device cuda --bf16 --length 4096 \\
        --block 256 --hidden 384 --heads 6 --minutes 9          # again and again: exit code 75 until all is done
    python3 tools/studies/sum_merge.py -o OUT --check --table > OUT/table.md         # and OUT/figure.svg

A query attends its local block up to itself and the top_k - 1 past blocks whose mean rotated key has the greatest dot
product with it; no gradient flows through the selection. The output is sum_j w_j softmax_j(q k / sqrt(d)) v over the
chosen blocks j, each softmax inside its block. Arms differ in w alone:
    lse       softmax of the blocks' log-sum-exps: one softmax over all chosen keys, as in Perigee
    gate_sum  softmax of the gate scores q mean(key) / sqrt(d); the local block's mean is over its keys up to the query
    mean_sum  1 / number of chosen blocks
--check compares them with full attention where every block is chosen, and with a slow reference where some are not.

The model is a plain decoder: RMSNorm, RoPE, SwiGLU, tied embeddings. AdamW (0.9, 0.95; decay of matrices 0.1), linear
warm-up, then a constant rate; gradients clipped to norm 1. Arms of a seed share initial weights and order of samples.
--tokens is a .bin of `perigee tokenize` with 16-bit tokens, read as one stream; --text has one token per byte.

A run ends where its loss is not finite; it is recorded as diverged. Definitions, over all steps of a run:
    final loss    mean of the training loss over the last tenth of the steps; all samples are new while the text lasts
    spike         loss above the mean of the 32 steps before by more than 5 of their standard deviations and 0.1 nat
    norms over 3x gradient norms before clipping over 3 times the median of the 32 steps before; over 10x are among them
    max logit     greatest |q k| / sqrt(d) of all layers, heads and pairs in the causal triangle, chosen or not
    excess loss   mean over seeds of min(final, first loss), minus that of the arm's best rate; a diverged run counts
                  with its first loss. Its mean over all rates is the sensitivity to the rate
    stable rate   no seed diverges, and its excess loss is at most the tolerance; rates below the best one need only the
                  former. The highest stable rate is the last before the first one that is not stable
"""
import argparse
import collections
import csv
import itertools
import math
import pathlib
import statistics
import subprocess
import sys
import time

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

ARMS = ("lse", "gate_sum", "mean_sum")
STEP = ("arm", "lr", "seed", "step", "tokens", "loss", "grad_norm", "max_logit")
RUN = ("commit", "arm", "lr", "seed", "steps", "tokens", "first_loss", "final_loss", "diverged", "spikes", "over_3x",
       "over_10x", "max_logit", "seconds", "device", "setup")
SIZES = {"layers": 3, "hidden": 96, "heads": 4, "length": 256, "block": 16, "top_k": 4, "batch": 8, "steps": 400,
         "warmup": 40}
WINDOW = 32
TOLERANCES = (0.1, 0.2, 0.5)
RECOMPUTE_ABOVE = 2**27  # scores of a layer; with more, the backward pass computes them again


def attend(q, k, v, top_k, arm, seen):
    """Output of one block of queries, [b, h, B, d]; k and v end with that block. Appends its max logit to `seen`."""
    (b, h, size, d), n = q.shape, k.shape[2] // q.shape[2]
    scores = (q * d**-0.5) @ k.transpose(-1, -2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).view(b, h, size, n, size)
    scores[..., -1, :].masked_fill_(torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1), -torch.inf)
    seen.append(scores.detach().nan_to_num(nan=torch.inf, neginf=0.0).abs().max())
    inside = scores.logsumexp(-1)
    with torch.set_grad_enabled(torch.is_grad_enabled() and arm == "gate_sum"):
        blocks = k.to(scores.dtype).view(b, h, n, size, d)
        counts = torch.arange(1, size + 1, device=q.device).view(-1, 1)
        past = q.to(scores.dtype) @ blocks[:, :, :-1].mean(3).transpose(-1, -2)
        local = (q * (blocks[:, :, -1].cumsum(2) / counts)).sum(-1, keepdim=True)
        gate = torch.cat([past, local], -1) * d**-0.5
    chosen = torch.zeros_like(gate, dtype=torch.bool)
    chosen[..., -1] = True
    chosen.scatter_(-1, past.topk(min(top_k, n) - 1).indices, True)
    by = {"lse": inside, "gate_sum": gate, "mean_sum": torch.zeros_like(gate)}[arm]
    merge = by.masked_fill(~chosen, -torch.inf).log_softmax(-1)
    weights = (scores + (merge - inside).unsqueeze(-1)).exp()
    return weights.flatten(-2).to(v.dtype) @ v


def attention(q, k, v, block, top_k, arm, seen):
    """q, k, v are [b, h, T, d] with T a multiple of block. One block of queries at a time."""
    again = torch.is_grad_enabled() and q.shape[:3].numel() * q.shape[2] > RECOMPUTE_ABOVE
    outputs = []
    for end in range(block, q.shape[2] + 1, block):
        rest = (q[:, :, end - block:end], k[:, :, :end], v[:, :, :end], top_k, arm, seen)
        outputs.append(checkpoint(attend, *rest, use_reentrant=False) if again else attend(*rest))
    return torch.cat(outputs, 2)


def rotate(x, base=10000.0):
    at, half = torch.arange(x.shape[2], device=x.device), x.shape[-1] // 2
    angles = torch.outer(at, base ** (-torch.arange(half, device=x.device) / half))
    (a, b), cos, sin = x.float().chunk(2, -1), angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args, width, inner = args, args.hidden, -(-args.hidden * 8 // 3 // 64) * 64
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.qk_norms = nn.ModuleList(nn.RMSNorm(width // args.heads, eps=1e-5) for _ in range(2 * args.qk_norm))

    def forward(self, x, arm, seen):
        qkv = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (y.unflatten(-1, (self.args.heads, -1)).transpose(1, 2) for y in qkv)
        if self.args.qk_norm:
            q, k = self.qk_norms[0](q), self.qk_norms[1](k)
        q, k = rotate(q).to(v.dtype), rotate(k).to(v.dtype)
        with torch.autocast(x.device.type, enabled=False):
            mixed = attention(q, k, v, self.args.block, self.args.top_k, arm, seen)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self, args, vocab):
        super().__init__()
        self.embedding = nn.Embedding(vocab, args.hidden)
        self.layers = nn.ModuleList(Layer(args) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.hidden, eps=1e-5)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                into_residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * args.layers) if into_residual else 1))

    def forward(self, ids, arm, seen):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, arm, seen)
        return F.linear(self.norm(x), self.embedding.weight)


def outliers(values, is_outlier):
    return sum(is_outlier(values[i], values[i - WINDOW:i]) for i in range(WINDOW, len(values)))


def train(args, data, vocab, arm, rate, seed):
    """Rows of steps.csv and the row of runs.csv."""
    torch.manual_seed(seed)
    model = Decoder(args, vocab).to(args.device)
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    samples = data[:len(data) // (args.length + 1) * (args.length + 1)].reshape(-1, args.length + 1)
    order = numpy.random.default_rng(seed).permutation(len(samples))
    rows, losses, norms, logits, began, diverged = [], [], [], [], time.monotonic(), False
    for step in range(1, args.steps + 1):
        chosen = order[numpy.arange((step - 1) * args.batch, step * args.batch) % len(order)]
        ids, seen = torch.from_numpy(samples[chosen].astype("int64")).to(args.device), []
        with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
            output = model(ids[:, :-1], arm, seen)
        loss = F.cross_entropy(output.float().flatten(0, 1), ids[:, 1:].flatten())
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / args.warmup)
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        losses.append(loss.item())
        logits.append(torch.stack(seen).max().item())
        diverged = not math.isfinite(losses[-1])
        if step == 1 or step % args.log_every == 0 or diverged:
            rows.append([arm, f"{rate:.4g}", seed, step, step * args.batch * args.length, f"{losses[-1]:.4f}",
                         f"{norms[-1]:.4g}", f"{logits[-1]:.4g}"])
        if diverged:
            break
        optimizer.step()
    final = math.nan if diverged else statistics.fmean(losses[-max(1, args.steps // 10):])
    spikes = outliers(losses, lambda x, w: x > statistics.fmean(w) + max(5 * statistics.pstdev(w), 0.1))
    over = [outliers(norms, lambda x, w: x > times * statistics.median(w)) for times in (3, 10)]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            cwd=pathlib.Path(__file__).parent).stdout.strip()
    device = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    return rows, [commit, arm, f"{rate:.4g}", seed, len(losses), rows[-1][4], f"{losses[0]:.4f}", f"{final:.4f}",
                  int(diverged), spikes, *over, f"{max(logits):.4g}", round(time.monotonic() - began), device,
                  args.setup]


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def append(path, head, rows):
    new = not path.exists()
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows] if new else rows)


def study(args):
    if args.tokens:
        data = numpy.memmap(args.tokens, "<u2", "r")
        vocab = (int(data.max()) // 64 + 1) * 64
        if (index := args.tokens.with_suffix(".idx")).exists() and index.read_bytes()[17] != 8:
            sys.exit(f"{index}: its tokens are not 16-bit")
    else:
        data, vocab = numpy.frombuffer(b"".join(path.read_bytes() for path in args.text), "u1"), 256
    args.output.mkdir(parents=True, exist_ok=True)
    path, began = args.output / "runs.csv", time.monotonic()
    finished = read(path) if path.exists() else []
    if any(run["setup"] != args.setup for run in finished):
        sys.exit(f"{path}: has runs of another setup than {args.setup}")
    finished = {(run["arm"], run["lr"], run["seed"]) for run in finished}
    for seed, rate, arm in itertools.product(args.seeds, args.rates, args.arms):
        if (arm, f"{rate:.4g}", str(seed)) in finished:
            continue
        if args.minutes and time.monotonic() - began > 60 * args.minutes:
            sys.exit(75)
        rows, run = train(args, data, vocab, arm, rate, seed)
        append(args.output / "steps.csv", STEP, rows)
        append(path, RUN, [run])
        print(*run[1:-2], file=sys.stderr, flush=True)


def reference(q, k, v, block, top_k, arm):
    """One head, [T, d], one query at a time."""
    outputs = []
    for t, query in enumerate(q * q.shape[1]**-0.5):
        blocks = list(zip((k @ query)[:t + 1].split(block), v[:t + 1].split(block)))
        chosen = sorted(blocks[:-1], key=lambda x: -x[0].mean())[:top_k - 1] + blocks[-1:]
        if arm == "lse":
            chosen = [[torch.cat(parts) for parts in zip(*chosen)]]
        gates = torch.stack([logits.mean() for logits, _ in chosen])
        weights = gates.softmax(0) if arm == "gate_sum" else torch.ones_like(gates) / len(chosen)
        outputs.append(sum(w * (logits.softmax(0) @ values) for w, (logits, values) in zip(weights, chosen)))
    return torch.stack(outputs)


def check(args):
    """Relative errors, norm of the difference over norm, with normal q, k, v."""
    n, shape = args.length // args.block, (3, 1, args.heads, args.length, args.hidden // args.heads)
    qkv = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    full = F.scaled_dot_product_attention(*qkv, is_causal=True)
    print(f"Relative errors against full attention with k = n = {n} and a slow reference with k = {args.top_k}.\n\n"
          "| arm | full, fp32 | full, fp64 | reference, fp64 |\n|---|---|---|---|")
    for arm in ARMS:
        def error(expected, dtype, top_k):
            got = attention(*qkv.to(args.device, dtype), args.block, top_k, arm, []).cpu()
            return ((got - expected).norm() / expected.norm()).item()

        heads = [reference(*head, args.block, args.top_k, arm) for head in qkv[:, 0].unbind(1)]
        single, double = error(full, torch.float32, n), error(full, torch.float64, n)
        own = error(torch.stack(heads)[None], torch.float64, args.top_k)
        print(f"| {arm} | {single:.1e} | {double:.1e} | {own:.1e} |")
        assert own < 1e-12, f"{arm} is not what the reference computes"
        assert arm != "lse" or (single < 1e-5 and double < 1e-12), "lse is not full attention"
    print()


def table(args):
    """Markdown from the rows alone. Only rates count that every arm has run with every seed, once each."""
    runs, begins = collections.defaultdict(list), {}
    for run in read(args.output / "runs.csv"):
        runs[run["arm"], float(run["lr"])].append(run)
    for row in read(args.output / "steps.csv"):
        begins.setdefault((row["arm"], row["lr"], row["seed"]), row["max_logit"])
    arms = [arm for arm in ARMS if any(arm == a for a, _ in runs)]
    seeds = sorted({run["seed"] for mine in runs.values() for run in mine})
    whole = lambda arm, rate: sorted(run["seed"] for run in runs.get((arm, rate), ())) == seeds
    rates = [rate for rate in sorted({rate for _, rate in runs}) if all(whole(arm, rate) for arm in arms)]
    every = [run for mine in runs.values() for run in mine]
    said = (f"{key} {', '.join(sorted({run[key] for run in every}))}" for key in ("commit", "device", "setup"))
    print(f"Rows of {'; '.join(said)}.\n\n| arm | runs | best rate | loss there | "
          f"mean excess loss | highest stable rate at {', '.join(map(str, TOLERANCES))} nat | diverged | spikes | "
          f"norms over 3x | over 10x |\n|{'---|' * 10}")

    def counts(some):
        return " | ".join(str(sum(int(r[key]) for r in some)) for key in ("diverged", "spikes", "over_3x", "over_10x"))

    def capped(run):
        first, final = float(run["first_loss"]), float(run["final_loss"])
        return min(first, final) if math.isfinite(final) else first

    for arm in arms:
        loss = {rate: statistics.fmean(capped(run) for run in runs[arm, rate]) for rate in rates}
        mine, best, stable = [run for rate in rates for run in runs[arm, rate]], min(rates, key=loss.get), []
        for tolerance in TOLERANCES:
            good = itertools.takewhile(lambda rate: not any(int(run["diverged"]) for run in runs[arm, rate])
                                       and (rate <= best or loss[rate] <= loss[best] + tolerance), rates)
            stable.append(f"{max(good, default=math.nan):.4g}")
        excess = statistics.fmean(loss.values()) - loss[best]
        print(f"| {arm} | {len(mine)} | {best:.4g} | {loss[best]:.4f} | {excess:.4f} | {', '.join(stable)} | "
              f"{counts(mine)} |")
    print("\nBy rate; losses and max logits are of each seed, the latter at the first step and the greatest.\n\n"
          f"| rate | arm | final loss | max logit | diverged | spikes | norms over 3x | over 10x |\n|{'---|' * 8}")
    for rate, arm in itertools.product(rates, arms):
        losses = ", ".join(run["final_loss"] for run in runs[arm, rate])
        logits = ", ".join(f"{begins[arm, run['lr'], run['seed']]} to {run['max_logit']}" for run in runs[arm, rate])
        print(f"| {rate:.4g} | {arm} | {losses} | {logits} | {counts(runs[arm, rate])} |")


def figure(args):
    """figure.svg: the final loss of every run over its rate, a line through each arm's mean."""
    runs = [run for run in read(args.output / "runs.csv") if not int(run["diverged"])]
    x_of = lambda run: math.log10(float(run["lr"]))
    y_of = lambda run: float(run["final_loss"])
    left, right, low, high = (f(map(of, runs)) for of in (x_of, y_of) for f in (min, max))
    place = lambda x, y: (60 + 380 * (x - left) / (right - left or 1), 250 - 220 * (y - low) / (high - low or 1))
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 580 300" font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="#fff"/>', '<text x="60" y="292">learning rate</text>',
             '<text x="8" y="18">final loss, nats</text>']
    parts += [f'<text x="48" y="{place(left, y)[1] + 4:.1f}" text-anchor="end" fill="#555">{y:.2f}</text>'
              for y in (low + (high - low) * i / 4 for i in range(5))]
    parts += [f'<text x="{place(x, low)[0]:.1f}" y="272" text-anchor="middle" fill="#555">{10**x:.2g}</text>'
              for x in sorted(set(map(x_of, runs)))]
    for i, (arm, colour) in enumerate(zip(ARMS, ("#2a6fb0", "#c2571a", "#3a8f4d"))):
        by_rate = collections.defaultdict(list)
        for run in runs:
            if run["arm"] == arm:
                by_rate[x_of(run)].append(y_of(run))
        means = " ".join("%.1f,%.1f" % place(x, statistics.fmean(found)) for x, found in sorted(by_rate.items()))
        parts.append(f'<polyline points="{means}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += ['<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>' % (*place(x, y), colour)
                  for x, found in by_rate.items() for y in found]
        parts.append(f'<text x="460" y="{40 + 18 * i}" fill="{colour}">{arm}</text>')
    (args.output / "figure.svg").write_text("\n".join(parts) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("-o", "--output", type=pathlib.Path, help="folder of steps.csv and runs.csv")
    add("--tokens", type=pathlib.Path, help="a .bin of 16-bit tokens")
    add("--text", type=pathlib.Path, nargs="+", help="files read as bytes")
    add("--arms", nargs="+", choices=ARMS, default=ARMS)
    add("--rates", type=float, nargs="+", default=[10**(i / 2 - 3) for i in range(5)])
    add("--seeds", type=int, nargs="+", default=[1, 2])
    for name, size in {**SIZES, "log_every": 10, "threads": 2}.items():
        add(f"--{name}", type=int, default=size)
    add("--qk_norm", action="store_true")
    add("--bf16", action="store_true")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--minutes", type=float, help="start no run after this; exit code 75 if some are left")
    add("--check", action="store_true", help="compare the arms with full attention")
    add("--table", action="store_true", help="print tables of the rows in the output folder, and draw figure.svg there")
    args = parser.parse_args()
    if args.length % args.block or args.hidden % (2 * args.heads):
        parser.error("length must be a multiple of block, and hidden of twice heads")
    if not args.check and not args.output:
        parser.error("needs --output")
    torch.set_num_threads(args.threads)
    args.setup = " ".join(f"{name}={int(getattr(args, name))}" for name in (*SIZES, "qk_norm", "bf16"))
    args.setup += f" data={'+'.join(path.name for path in [*(args.text or []), args.tokens] if path)}"
    if args.check:
        check(args)
    if args.tokens or args.text:
        study(args)
    if args.table:
        table(args)
        figure(args)


if __name__ == "__main__":
    main()
