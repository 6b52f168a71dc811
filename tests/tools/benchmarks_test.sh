#!/usr/bin/env bash
# docs/benchmarks.md shows the runs in docs/benchmarks: no number of a table is written by hand.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$PERIGEE_SOURCE/tools/bench/report.py" --check
mkdir -p "$work/tools/bench"
cp "$PERIGEE_SOURCE/tools/bench/report.py" "$work/tools/bench/"
cp -r "$PERIGEE_SOURCE/docs" "$work/docs"
sed -i '0,/60233/s//60234/' "$work"/docs/benchmarks/*.json
! "$work/tools/bench/report.py" --check 2>"$work/log" || { echo "another number in a run goes unnoticed"; exit 1; }
"$work/tools/bench/report.py"
grep -q '| 60,234 |' "$work/docs/benchmarks.md" || { echo "it is not rendered"; exit 1; }
