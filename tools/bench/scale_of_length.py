#!/usr/bin/env python3
"""Memory and time of a training step from 4K to 512K tokens: one table, one run of `perigee bench` per length.

    tools/bench/scale_of_length.py build/cuda/bin/perigee
    tools/bench/scale_of_length.py build/cuda/bin/perigee --lengths 4096,8192 attention.top_k=4

One document a step, MoBA but for the last two layers, which are full. Each length takes the first recompute policy that
fits, or the one that train.recompute=... names. Ratios are to the row above: what is linear doubles, what is quadratic
quadruples.
"""

import argparse
import json
import pathlib
import subprocess
import sys

POLICIES = ("none", "mlp", "block")
GIB = 1 << 30


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("perigee", help="the program")
    parser.add_argument("overrides", nargs="*", help="key=value for every length")
    parser.add_argument("--config", default=pathlib.Path(__file__).parents[2] / "configs/bench/llama_1b.yaml")
    parser.add_argument("--lengths", default=",".join(str(4096 << i) for i in range(8)))
    parser.add_argument("--tokens", type=int, default=1 << 18, help="timed at each length, at least one step")
    return parser.parse_intermixed_args()  # overrides may follow the options


def policies(overrides):
    forced = [value for key, _, value in (item.partition("=") for item in overrides) if key == "train.recompute"]
    return tuple(forced[-1:]) or POLICIES


def measure(options, length, policy):
    """The benchmark's JSON object, or None where memory does not suffice."""
    steps = max(1, min(20, options.tokens // length))
    command = [options.perigee, "bench", str(options.config), f"data.sequence_length={length}",
               "train.global_batch_size=1", "train.micro_batch_size=1", f"train.recompute={policy}",
               "attention.kind=moba", "attention.full_layers={last: 2}", *options.overrides,
               "--brief", "--json", "--steps", str(steps), "--warmup", "3" if steps > 2 else "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if "out of memory" in done.stderr:
        return None
    sys.exit(f"scale_of_length: {' '.join(command)} failed with {done.returncode}:\n{done.stderr.strip()}")


def main():
    options = arguments()
    print("| tokens | recompute | memory | ratio | of it activations | step | ratio | tokens/s | TFLOP/s |")
    print("|---|---|---|---|---|---|---|---|---|")
    before, first, tried = None, 0, policies(options.overrides)
    for length in map(int, options.lengths.split(",")):
        found = None
        while found is None:
            if first == len(tried):
                sys.exit(f"scale_of_length: {length} tokens do not fit")
            found = measure(options, length, tried[first])
            first += found is None  # longer ones will not fit either
        memory, seconds = found["device_bytes"], found["seconds"]
        ratios = ("", "") if before is None else (f"{memory / before[0]:.2f}", f"{seconds / before[1]:.2f}")
        print(f"| {length:,} | {tried[first]} | {memory / GIB:.1f} GiB | {ratios[0]} | "
              f"{found['activation_bytes'] / GIB:.1f} GiB | {seconds:.3f} s | {ratios[1]} | "
              f"{found['tokens_per_s']:,.0f} | {found['tflops']:.0f} |", flush=True)
        before = (memory, seconds)


if __name__ == "__main__":
    main()
