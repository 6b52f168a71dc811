#!/usr/bin/env python3
"""Holds `probe attention` against PyTorch: an independent fp64 attention with autograd, and MoBA's rules from their text.

Run by hand, after tools/bench/setup_torch.sh and a build:
    .venv/bin/python tests/tools/attention_torch_check.py build/cpu/bin/probe [--seed N] [--cases WORD]

Each case draws fresh packed documents, runs the probe in float32 and in float64, and checks o, lse, dq, dk and dv
against dense masked attention. For MoBA the mask follows the blocks that the probe says it chose; the choice itself is
checked against one made here: equal, except where the scores of two blocks agree to rounding. Cases with integer values
have exact scores and many ties, and there the choice must be equal without exception.
"""

import argparse
import dataclasses
import pathlib
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np
import torch

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}  # of the largest value of each tensor
NEAR_TIE = {np.float32: 1e-6, np.float64: 1e-14}  # of |q| |c|


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    documents: tuple
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    kind: str = "moba"
    block_size: int = 16
    top_k: int = 3
    force_previous: bool = False
    group: bool = False
    integers: bool = False

    def flags(self):
        if self.kind == "full":
            return ["kind=full"]
        return ([f"block_size={self.block_size}", f"top_k={self.top_k}"]
                + ["force_previous=true"] * self.force_previous + ["shared_selection=group"] * self.group)


RAGGED = (1, 100, 0, 37, 16, 129, 2)  # a single token, an empty document, whole blocks and torn ones
CASES = [
    Case("full, grouped heads, ragged", RAGGED, kind="full"),
    Case("full, one head each", (150, 64), kv_heads=4, head_dim=48, kind="full"),
    Case("full, one key head, several tiles", (700, 333), heads=3, kv_heads=1, head_dim=128, kind="full"),
    Case("moba, grouped heads, ragged", RAGGED),
    Case("moba, one head each", (150, 64), kv_heads=4, head_dim=64),
    Case("moba, one key head, several tiles", (900, 333), heads=3, kv_heads=1, head_dim=128, block_size=64, top_k=4),
    Case("moba, block-local", RAGGED, top_k=1),
    Case("moba, two blocks", RAGGED, top_k=2),
    Case("moba, everything chosen", RAGGED, top_k=9),
    Case("moba, blocks longer than documents", RAGGED, block_size=256),
    Case("moba, blocks of one token", (40, 7), block_size=1, top_k=5),
    Case("moba, odd block size", RAGGED, block_size=13),
    Case("moba, previous block forced", RAGGED, block_size=8, force_previous=True),
    Case("moba, only the previous block", RAGGED, block_size=8, top_k=2, force_previous=True),
    Case("moba, one choice per group", RAGGED, block_size=8, group=True),
    Case("moba, one choice per group, previous forced", RAGGED, block_size=8, group=True, force_previous=True, top_k=4),
    Case("moba, ties", (1, 100, 0, 40, 128), block_size=4, top_k=4, head_dim=8, integers=True),
    Case("moba, ties in groups", (1, 100, 0, 40, 128), block_size=4, top_k=4, head_dim=8, integers=True, group=True),
]


def draw(case, seed, dtype):
    random = np.random.default_rng(seed)
    tokens = sum(case.documents)

    def values(heads):
        shape = (tokens, heads, case.head_dim)
        return (random.integers(-2, 3, shape) if case.integers else random.standard_normal(shape)).astype(dtype)

    return {"q": values(case.heads), "k": values(case.kv_heads), "v": values(case.kv_heads), "do": values(case.heads),
            "cu_seqlens": np.cumsum((0,) + case.documents).astype(np.int32)}


def probe(program, case, inputs, folder):
    source, target = folder / "in.h5", folder / "out.h5"
    target.unlink(missing_ok=True)
    with h5py.File(source, "w") as file:
        for name, value in inputs.items():
            file[name] = value
    subprocess.run([program, "attention", source, target, *case.flags()], check=True, timeout=300)
    with h5py.File(target) as file:
        return {name: file[name][()] for name in file}


def documents(cu_seqlens):
    return [(b, e) for b, e in zip(cu_seqlens[:-1], cu_seqlens[1:]) if e > b]


def block_scores(case, q, k, dtype):
    """Of one document, [L, H, blocks]: <q, centroid>, and |q| |centroid| as the measure of its rounding."""
    length = q.shape[0]
    centroids = torch.stack([k[i:i + case.block_size].mean(0) for i in range(0, length, case.block_size)])
    centroids = centroids.to(torch.float32 if dtype is np.float32 else torch.float64).double()
    share = case.heads // case.kv_heads
    if case.group:
        q = q.view(length, case.kv_heads, share, -1).sum(2).repeat_interleave(share, dim=1)
    centroids = centroids.repeat_interleave(share, dim=1)
    return (torch.einsum("thd,bhd->thb", q, centroids),
            torch.einsum("th,bh->thb", q.norm(dim=-1), centroids.norm(dim=-1)))


def check_choice(case, row, scores, sizes, current, near_tie):
    """`row` is the choice of one query and head. Returns what is wrong with it, or None."""
    chosen = [int(b) for b in row if b >= 0]
    wanted = min(case.top_k - 1, current)
    if chosen != sorted(set(chosen)) or list(row[len(chosen):]) != [-1] * (len(row) - len(chosen)):
        return f"{row} is not ascending, distinct and filled up with -1"
    if len(chosen) != wanted or any(b >= current for b in chosen):
        return f"{row} is not {wanted} blocks before {current}"
    forced = [current - 1] if case.force_previous and wanted > 0 else []
    free = [b for b in range(current) if b not in forced]
    best = sorted(free, key=lambda b: (scores[b], b), reverse=True)[:wanted - len(forced)]
    if set(chosen) == set(best + forced):
        return None
    missed, taken = set(best + forced) - set(chosen), set(chosen) - set(best + forced)
    margin = max(scores[b] for b in missed) - min(scores[b] for b in taken)
    if not case.integers and not missed & set(forced) and margin <= near_tie * max(sizes[b] for b in missed | taken):
        return None
    return f"{row} takes {sorted(taken)} for {sorted(missed)}, {margin:.2e} worse"


def check_routing(case, inputs, chosen, dtype):
    tokens = inputs["q"].shape[0]
    if chosen.shape != (tokens, case.heads, case.top_k - 1):
        return [f"chosen is {chosen.shape}"]
    problems = []
    q, k = (torch.from_numpy(inputs[name]).double() for name in "qk")
    for begin, end in documents(inputs["cu_seqlens"]):
        scores, sizes = (x.tolist() for x in block_scores(case, q[begin:end], k[begin:end], dtype))
        for t in range(end - begin):
            for h in range(case.heads):
                problem = check_choice(case, chosen[begin + t, h], scores[t][h], sizes[t][h], t // case.block_size,
                                       NEAR_TIE[dtype])
                if problem:
                    problems.append(f"document at {begin}, token {t}, head {h}: {problem}")
    return problems


def visible(case, chosen, begin, end):
    """Of one document, [H, L, L]: which keys a query attends."""
    length = end - begin
    causal = torch.ones(length, length, dtype=torch.bool).tril().expand(case.heads, -1, -1)
    if case.kind == "full":
        return causal
    block = torch.arange(length) // case.block_size
    rows = torch.from_numpy(chosen[begin:end].astype(np.int64)).permute(1, 0, 2)
    picked = (rows[:, :, None, :] == block[None, None, :, None]).any(-1)
    return causal & (picked | (block[:, None] == block[None, :]))


def reference(case, inputs, chosen):
    """Dense attention in fp64 with autograd."""
    q, k, v = (torch.from_numpy(inputs[name]).double().requires_grad_() for name in "qkv")
    share = case.heads // case.kv_heads
    outputs, sums = [], []
    for begin, end in documents(inputs["cu_seqlens"]):
        q_HLd = q[begin:end].transpose(0, 1)
        k_HLd, v_HLd = (x[begin:end].repeat_interleave(share, dim=1).transpose(0, 1) for x in (k, v))
        scores = q_HLd @ k_HLd.transpose(1, 2) * case.head_dim**-0.5
        scores = scores.masked_fill(~visible(case, chosen, begin, end), -torch.inf)
        outputs.append((scores.softmax(-1) @ v_HLd).transpose(0, 1))
        sums.append(scores.logsumexp(-1).transpose(0, 1))
    o = torch.cat(outputs)
    o.backward(torch.from_numpy(inputs["do"]).double())
    return {"o": o, "lse": torch.cat(sums), "dq": q.grad, "dk": k.grad, "dv": v.grad}


def check(program, case, seed, dtype, folder):
    inputs = draw(case, seed, dtype)
    found = probe(program, case, inputs, folder)
    chosen = found.get("chosen")
    problems = check_routing(case, inputs, chosen, dtype) if case.kind == "moba" else []
    if problems:
        problems = [f"{len(problems)} wrong choices, the first: {problems[0]}"]
    errors = {}
    for name, wanted in reference(case, inputs, chosen).items():
        wanted = wanted.detach().numpy()
        value = found[name]
        if value.shape != wanted.shape or value.dtype != dtype:
            problems.append(f"{name} is {value.dtype} {value.shape}, expected {wanted.shape}")
            continue
        errors[name] = np.abs(value - wanted).max() / max(np.abs(wanted).max(), 1e-30)
        if not errors[name] < TOLERANCE[dtype]:  # a NaN fails too
            problems.append(f"{name} is off by {errors[name]:.2e}")
    figures = "  ".join(f"{name} {error:.1e}" for name, error in errors.items())
    print(f"{'FAILED' if problems else 'ok':6} {dtype.__name__}  {case.name:45} {figures}")
    for problem in problems:
        print(f"       {problem}")
    return not problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="probe")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--cases", default="", help="only cases whose name holds this")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder:
        results = [check(options.program, case, [options.seed, number], dtype, pathlib.Path(folder))
                   for number, case in enumerate(CASES) if options.cases in case.name
                   for dtype in (np.float32, np.float64)]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    sys.exit(not results or not all(results))


if __name__ == "__main__":
    main()
