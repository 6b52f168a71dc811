#!/usr/bin/env python3
"""Training speed of a plain PyTorch Llama, the peer that Perigee's own training step is measured against.

Written as a competent PyTorch user would: fused projections, scaled_dot_product_attention, fused AdamW, gradient
clipping, eager or torch.compile, whichever is faster here. Needs tools/bench/setup_torch.sh once.
On a GPU as torchtitan builds it: fp32 parameters, bf16 compute by autocast, torch.compile for each block and for the
loss, attention by cuDNN.

    .venv/bin/python tools/bench/peer_torch.py --cpu
    python3 tools/bench/peer_torch.py --cuda --hidden 2048 --layers 16 --heads 32 --kv-heads 8 --head-dim 64 \
        --intermediate 8192 --vocab 128256 --sequence 8192 --batch 4
    .venv/bin/python tools/bench/peer_torch.py --cpu --ours build/cpu/bin/bench_step   # both, alternating
    python3 tools/bench/peer_torch.py --cuda --hidden 2048 ... --ours build/cuda/bin/perigee

With --ours, Perigee trains the same shape, by `bench_step` on the CPU and `perigee bench` on a GPU, round by round in
alternation, so that a machine whose speed drifts is fair to both. The last line of output is one JSON object.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Shape:
    """Defaults: the model of launch/quickstart.sh."""

    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 768
    vocab: int = 320
    sequence: int = 512
    batch: int = 8

    @property
    def tokens(self):
        return self.batch * self.sequence


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.qkv = nn.Linear(shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x, cos, sin):
        s = self.shape
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, -1, s.head_dim).transpose(1, 2)
        q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        o = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True,
                                           enable_gqa=s.heads != s.kv_heads)
        return self.out(o.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, shape, tied):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        if tied:
            self.head.weight = self.embedding.weight
        cos, sin = rope_tables(shape.sequence, shape.head_dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids, targets):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.loss(self.head(self.norm(x)), targets)

    def loss(self, logits, targets):
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def rope_tables(length, head_dim, theta=10000.0):
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency).repeat(1, 2)
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def attention(device):
    """Which attention PyTorch may take."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if device.type == "cuda" else contextlib.nullcontext()


class Trainer:
    """One model on one device. `synchronise` makes wall-clock times mean finished work."""

    def __init__(self, shape, tied, device, compiled):
        torch.manual_seed(1234)
        self.shape = shape
        self.synchronise = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        self.model = Llama(shape, tied).to(device)
        self.forward = self.model
        if compiled and device.type == "cuda":
            for block in self.model.blocks:
                block.compile(fullgraph=True)
            self.model.loss = torch.compile(self.model.loss)
        elif compiled:
            self.forward = torch.compile(self.model)
        self.device = device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1,
                                           fused=True)
        self.batches = [torch.randint(shape.vocab, (shape.batch, shape.sequence + 1), device=device) for _ in range(8)]
        self.steps_done = 0

    def step(self):
        tokens = self.batches[self.steps_done % len(self.batches)]
        self.steps_done += 1
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"), attention(self.device):
            loss = self.forward(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()  # a trainer that logs its loss waits for it

    def seconds(self, steps):
        """The time of each of `steps` steps."""
        times = []
        for _ in range(steps):
            self.synchronise()
            start = time.perf_counter()
            loss = self.step()
            self.synchronise()
            times.append(time.perf_counter() - start)
            if not math.isfinite(loss):
                sys.exit(f"peer_torch: the loss became {loss}")
        return times


def choose(shape, tied, device, mode, warmup):
    """The trainer of the wanted mode; for `auto`, the faster of eager and compiled, with both figures."""
    tried = {}
    for name in ("eager", "compile") if mode == "auto" else (mode,):
        try:
            trainer = Trainer(shape, tied, device, compiled=name == "compile")
            trainer.seconds(warmup)
            tried[name] = (statistics.median(trainer.seconds(warmup)), trainer)
        except Exception as error:  # torch.compile needs a C++ compiler and Python's headers
            if mode != "auto" or name != "compile":
                raise
            print(f"torch.compile does not work here, eager it is: {str(error).splitlines()[0]}", file=sys.stderr)
    best = min(tried, key=lambda name: tried[name][0])
    return best, tried[best][1], {name: shape.tokens / seconds for name, (seconds, _) in tried.items()}


def ours_on_cpu(program, shape, tied, threads, steps):
    """The command of bench_step."""
    command = [program, "--kind", "full", "--json", "--steps", str(steps), "--threads", str(threads)]
    for field in dataclasses.fields(shape):
        command += ["--" + field.name.replace("_", "-"), str(getattr(shape, field.name))]
    return command + ["--tied"] * tied


def ours_on_gpu(program, shape, tied, steps):
    """The command of `perigee bench`."""
    config = pathlib.Path(__file__).parents[2] / "configs/bench/llama_1b.yaml"
    model = {"hidden_size": shape.hidden, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
             "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
             "intermediate_size": shape.intermediate, "vocab_size": shape.vocab,
             "tie_word_embeddings": str(tied).lower()}
    return [program, "bench", str(config), *(f"model.{key}={value}" for key, value in model.items()),
            f"data.sequence_length={shape.sequence}", f"train.global_batch_size={shape.batch}",
            f"train.micro_batch_size={shape.batch}", "--brief", "--json", "--steps", str(steps)]


def ours_seconds(command, shape):
    """Seconds of a step of Perigee, the mean or median that its benchmark prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"peer_torch: {' '.join(command)} failed with {done.returncode}:\n{done.stderr.strip()}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"peer_torch: {command[0]} --json printed no JSON object:\n{done.stdout.strip()}")
    return shape.tokens / json.loads(lines[-1])["tokens_per_s"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--cpu", action="store_true", help="measure on the CPU")
    place.add_argument("--cuda", action="store_true", help="measure on a GPU")
    for field in dataclasses.fields(Shape):
        parser.add_argument("--" + field.name.replace("_", "-"), type=int, default=field.default)
    parser.add_argument("--tied", action="store_true", help="one matrix for embedding and head")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; with --ours each runs both, in alternation")
    parser.add_argument("--warmup", type=int, default=5, help="untimed steps")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--mode", choices=("auto", "eager", "compile"), default="auto")
    parser.add_argument("--ours", metavar="PROGRAM",
                        help="also run bench_step, on a GPU perigee, and print ours / PyTorch")
    return parser.parse_args()


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    shape = Shape(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Shape)})
    device = torch.device("cuda" if options.cuda else "cpu")
    if options.cuda and options.mode == "auto":
        options.mode = "compile"
    mode, trainer, tried = choose(shape, options.tied, device, options.mode, options.warmup)

    if options.cuda:
        command = ours_on_gpu(options.ours, shape, options.tied, options.steps)
    else:
        command = ours_on_cpu(options.ours, shape, options.tied, options.threads, options.steps)
    theirs, ours = [], []
    for number in range(options.rounds):
        if options.ours:
            if options.cuda:
                trainer.optimizer.zero_grad(set_to_none=True)
                torch.cuda.empty_cache()  # ours needs the room of gradients and activations
            ours.append(ours_seconds(command, shape))
        trainer.seconds(1)  # wakes the threads and the caches that the other program had
        theirs.append(statistics.median(trainer.seconds(options.steps)))
        figures = [f"PyTorch {shape.tokens / theirs[-1]:,.0f} tokens/s"]
        if ours:
            figures.insert(0, f"ours {shape.tokens / ours[-1]:,.0f} tokens/s")
        print(f"round {number + 1}: " + "  ".join(figures))

    result = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.cuda else "cpu",
        "threads": options.threads,
        "mode": mode,
        "tried_tokens_per_s": {name: round(speed, 1) for name, speed in tried.items()},
        **dataclasses.asdict(shape),
        "tied": options.tied,
        "tokens_per_s": round(shape.tokens / statistics.median(theirs), 1),
    }
    print(f"PyTorch {torch.__version__} ({mode}): {result['tokens_per_s']:,.0f} tokens/s, median of "
          f"{options.rounds} rounds of {options.steps} steps on {options.threads} threads")
    if ours:
        result["ours_tokens_per_s"] = round(shape.tokens / statistics.median(ours), 1)
        result["ratio"] = round(statistics.median(theirs) / statistics.median(ours), 4)
        print(f"ours: {result['ours_tokens_per_s']:,.0f} tokens/s; ours / PyTorch = {result['ratio']:.2f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
