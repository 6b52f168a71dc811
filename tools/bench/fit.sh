#!/usr/bin/env bash
# Whether `perigee check --fit` ranks layouts as phantoms do: the last rank of each of its five best layouts, with the
# keys that it prints. One JSON object a layout, the best first; fails where a layout that it puts later is faster by
# more than the tolerance.
#   tools/bench/fit.sh [--bin DIR] [--out FILE] [--seconds N] [--tolerance SHARE] CONFIG WORLD [key=value ...]
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$root/build/cuda/bin out=$root/fit.jsonl seconds=120 tolerance=0.03
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=$2 && shift 2 ;;
        --out) out=$2 && shift 2 ;;
        --seconds) seconds=$2 && shift 2 ;;
        --tolerance) tolerance=$2 && shift 2 ;;
        *) break ;;
    esac
done
[ $# -ge 2 ] || { echo "fit.sh: CONFIG and WORLD are missing: see its first lines" >&2 && exit 2; }
config=$1 world=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$bin/perigee" check "$config" --world-size "$world" --fit "$@" >"$log" || exit
python3 - "$log" "$bin/bench_train" "$config" "$out" "$seconds" "$tolerance" "$@" <<'PYTHON'
import json
import re
import subprocess
import sys

report, bench, config, out, seconds, tolerance, *overrides = sys.argv[1:]
parallel = re.compile(r"parallel: \{data: (\d+), context: (\d+), tensor: (\d+), shard: (\w+)\}")
layouts = []
for line in open(report):
    if line.startswith("parallel: "):
        layouts.append([*parallel.match(line).groups(), []])
    elif layouts and (found := re.match(r"  (\w+): (.*)", line)):
        layouts[-1][4].append(f"train.{found[1]}={found[2]}")
times = []
with open(out, "a") as results:
    for place, (data, context, tensor, shard, keys) in enumerate(layouts, 1):
        last = int(data) * int(context) * int(tensor) - 1
        command = [bench, config, *overrides, *keys, f"parallel.shard={shard}", "--json", "--rehearse", "--steps", "2",
                   "--warmup", "1", "--of", f"dp={data},cp={context},tp={tensor}", "--as-rank", str(last)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=int(seconds))
        if run.returncode != 0:
            sys.exit(f"fit.sh: layout {place}: {run.stderr.strip().splitlines()[-1]}")
        row = json.loads(run.stdout.splitlines()[-1]) | {"place": place}
        results.write(json.dumps(row) + "\n")
        times.append(row["seconds"])
        print(f"{place}: {row['of']}, {shard}: {row['seconds']:.3f} s, reckoned {row['predicted_seconds']:.3f} s")
if not times:
    sys.exit("fit.sh: no layout fits")
wrong = [(a + 1, b + 1) for a in range(len(times)) for b in range(a + 1, len(times))
         if times[b] < times[a] * (1 - float(tolerance))]
if wrong:
    sys.exit(f"fit.sh: in another order: {wrong}")
PYTHON
