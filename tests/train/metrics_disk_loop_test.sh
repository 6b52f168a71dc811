#!/usr/bin/env bash
# A real disk that is full for a while in the middle of a run of two ranks: every step's line is in metrics.jsonl in the
# end. A disk that stays full: the run is saved and ends with code 3, which says how many lines are lost.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
mkdir "$scratch/small"
if ! mount -t tmpfs -o size=16000k tmpfs "$scratch/small" 2>/dev/null; then
    echo "no tmpfs can be mounted here; metrics_failure_test.cc has failing disks too"
    exit 77
fi
trap 'umount "$scratch/small"; rm -rf "$scratch"' EXIT
folder=$scratch/small/run
options=(train.steps=600 checkpoint.every=0)
fill() { dd if=/dev/zero of="$scratch/small/filler" bs=1k 2>/dev/null || true; }

# Rank 0 stops at the line of step 5.
export PERIGEE_KILL=write:metrics.jsonl:5 PERIGEE_KILL_BY=19
start 2 "$folder" perigee_faulty "${options[@]}"
unset PERIGEE_KILL PERIGEE_KILL_BY
eventually 120 stopped "$folder" || complain "does not stop"
fill
kill -CONT "$(rank_pid "$folder" 0)"
eventually 120 grep -q 'metrics.jsonl wait in memory until it can be written: .*No space left' "$scratch/log" ||
    complain "nothing is said of a full disk"
sleep 0.3
rm "$scratch/small/filler"
finish
[ "$code" = 0 ] || complain "full for a while: exit code $code"
[ "$(grep -c 'metrics.jsonl can be written again: [0-9]* lines that waited' "$scratch/log")" = 1 ] ||
    complain "nothing is said of the lines that waited"
diff <(sed -nE 's/^\{"step":([0-9]+),"loss".*\}$/\1/p' "$folder/metrics.jsonl") <(seq 600) >"$scratch/diff" ||
    complain "steps are missing"
[ "$(wc -l <"$folder/metrics.jsonl")" = 600 ] || complain "other lines"
verdict
