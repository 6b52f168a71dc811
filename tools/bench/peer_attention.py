#!/usr/bin/env python3
"""FlashAttention 4 beside Perigee's dense attention and cuDNN: the problems of bench_dense, round by round in alternation.

    python3 tools/bench/peer_attention.py build/cuda/bin/bench_dense --only "32K, d 128" --rounds 3

Needs PyTorch and the package flash-attn-4 in this Python. Each measurement rests, runs work back to back for --seconds
and takes the median of its runs, as bench_dense does. Documents of one length go through flash_attn_func as a batch,
others through flash_attn_varlen_func. The first call of FlashAttention 4 compiles; that is not timed. Prints medians of
rounds in milliseconds and the largest difference of o between FlashAttention 4 and PyTorch's own attention, on one
document of 2,048 tokens with the problem's heads. --json FILE appends a JSON object a problem and pass, with every round.
"""
import argparse
import importlib.metadata
import json
import pathlib
import re
import statistics
import subprocess
import time

import torch
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
from torch.nn.functional import scaled_dot_product_attention

PACKAGE = "flash-attn-4 " + importlib.metadata.version("flash-attn-4")


def output(x):
    return x[0] if isinstance(x, tuple) else x


class Peer:
    """FlashAttention 4 on one problem."""

    def __init__(self, problem):
        lengths, head_dim = problem["lengths"], problem["head_dim"]
        draw = torch.Generator("cuda").manual_seed(1)
        alike = len(set(lengths)) == 1
        shape = (len(lengths), lengths[0]) if alike else (sum(lengths),)
        make = lambda heads: torch.randn(*shape, heads, head_dim, device="cuda", dtype=torch.bfloat16, generator=draw)
        self.q, self.k, self.v = (make(problem[heads]).requires_grad_() for heads in ("heads", "kv_heads", "kv_heads"))
        self.d_o = make(problem["heads"])
        if alike:
            self.pack = None
        else:
            borders = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
            self.pack = dict(cu_seqlens_q=borders, cu_seqlens_k=borders, max_seqlen_q=max(lengths), max_seqlen_k=max(lengths))
        self.o = self.call()
        self.backward()

    def call(self):
        if self.pack is None:
            return output(flash_attn_func(self.q, self.k, self.v, causal=True))
        return output(flash_attn_varlen_func(self.q, self.k, self.v, causal=True, **self.pack))

    def forward(self):
        with torch.no_grad():
            self.call()

    def backward(self):
        torch.autograd.grad(self.o, (self.q, self.k, self.v), self.d_o, retain_graph=True)


def milliseconds(work, seconds, rest):
    def runs(count):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            work()
            event.record()
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:]))

    time.sleep(rest)
    runs(1)
    estimate = max(runs(1), 1e-3)
    return runs(min(max(int(seconds * 1e3 / estimate), 3), 1000))


def difference(problem, tokens=2048):
    """Largest difference of o to PyTorch's attention."""
    small = Peer({**problem, "lengths": [tokens]})
    rows = lambda x: x.detach().transpose(1, 2)
    with torch.no_grad():
        want = scaled_dot_product_attention(rows(small.q), rows(small.k), rows(small.v), is_causal=True, enable_gqa=True)
    return (rows(small.o).float() - want.float()).abs().max().item()


def ours(program, problem, seconds, rest):
    """{(pass, kernels): milliseconds} of bench_dense."""
    text = subprocess.run([program, "--only", problem["name"], "--rounds", "1", "--seconds", str(seconds), "--rest", str(rest)],
                          check=True, capture_output=True, text=True).stdout
    found, passes = {}, iter(("forward", "backward"))
    for line in text.splitlines():
        if match := re.match(r"  (cuDNN|own(?:, deterministic)?) +([0-9.]+) ms", line):
            # cuDNN comes first in the forward, the deterministic kernels in the backward.
            if (match[1] == "cuDNN" and not found) or match[1] == "own, deterministic":
                current = next(passes)
            found[current, match[1]] = float(match[2])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=pathlib.Path, help="bench_dense")
    parser.add_argument("--only", default="", help="as for bench_dense")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--rest", type=float, default=0.1)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    listed = subprocess.run([args.program, "--list", "--only", args.only], check=True, capture_output=True, text=True).stdout
    for problem in map(json.loads, listed.splitlines()):
        rounds = []
        apart = difference(problem)
        for _ in range(args.rounds):
            peer = Peer(problem)
            times = {(name, "FlashAttention 4"): milliseconds(getattr(peer, name), args.seconds, args.rest)
                     for name in ("forward", "backward")}
            del peer
            torch.cuda.empty_cache()
            rounds.append({**times, **ours(args.program, problem, args.seconds, args.rest)})
        print(f"{problem['name']}: {problem['heads']}/{problem['kv_heads']} heads, o differs by {apart:.1e}", flush=True)
        for of in ("forward", "backward"):
            kernels = sorted({kernel for times in rounds for name, kernel in times if name == of})
            cells = [f"{kernel} {statistics.median(times[of, kernel] for times in rounds):.3f} ms" for kernel in kernels]
            print(f"  {of:<9} {'   '.join(cells)}", flush=True)
            if args.json:
                with args.json.open("a") as file:
                    file.write(json.dumps({"package": PACKAGE, "problem": problem["name"], "pass": of, "device": torch.cuda.get_device_name(),
                                           "rounds_ms": {kernel: [round(times[of, kernel], 3) for times in rounds] for kernel in kernels}})
                               + "\n")


if __name__ == "__main__":
    main()
