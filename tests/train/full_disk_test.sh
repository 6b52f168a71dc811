#!/usr/bin/env bash
# A disk that fills up under a real run that saves beside training: it goes on, until the third save in a row has failed;
# one message, exit code 4, and once there is room the next start repeats the unbroken run from the last whole checkpoint.
# A limit on the size of files fails saves in the same way.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"

code=0  # a checkpoint has 470 kB
(ulimit -f 300 && exec "$PERIGEE_BIN/perigee" train "$scratch/run.yaml" output_dir="$scratch/limit" train.steps=10 \
    checkpoint.every=6 checkpoint.async=false) >"$scratch/log" 2>&1 || code=$?
[ "$code" = 4 ] || complain "limit on file sizes: exit code $code"
grep -q 'checkpoint at step 6 failed, training goes on: .*File too large' "$scratch/log" || complain "limit: no warning"

mkdir "$scratch/small"
if ! mount -t tmpfs -o size=16000k tmpfs "$scratch/small" 2>/dev/null; then
    echo "no tmpfs can be mounted here; save_failure_test.cc has failing disks too"
    [ "$failures" = 0 ] && exit 77
    exit 1
fi
trap 'umount "$scratch/small"; rm -rf "$scratch"' EXIT
folder=$scratch/small/run
options=(checkpoint.every=2)

run 2 "$scratch/whole" perigee "${options[@]}"
[ "$code" = 0 ] || complain "unbroken run"

# Rank 0 stops at the line of step 5, where the save of step 2 is complete and the one of step 4 may still be going on.
export PERIGEE_KILL=write:metrics.jsonl:5 PERIGEE_KILL_BY=19
start 2 "$folder" perigee_faulty "${options[@]}"
unset PERIGEE_KILL PERIGEE_KILL_BY
eventually 120 stopped "$folder" || complain "does not stop"
eventually 60 [ -d "$folder/checkpoints/step_00000002" ] || complain "the first save is not over"
sleep 1  # for rank 1's part of step 4
# Room for lines, not for a checkpoint of 470 kB.
free=$(df --output=avail -k "$scratch/small" | tail -1)
dd if=/dev/zero of="$scratch/small/filler" bs=1k count=$((free - 200)) 2>/dev/null || complain "no room for the filler"
kill -CONT "$(rank_pid "$folder" 0)"
finish
[ "$code" = 4 ] || complain "full disk: exit code $code"
[ "$(grep -c '^perigee: ' "$scratch/log")" = 1 ] || complain "full disk: not one message"
grep -qE '^perigee: checkpoint error: .*(No space left|no room)' "$scratch/log" || complain "full disk: another message"
[ "$(grep -c 'failed, training goes on' "$scratch/log")" = 2 ] || complain "full disk: two saves can fail before the third"
last=$(grep -c '"loss"' "$folder/metrics.jsonl")
[ "$last" -ge 8 ] && [ "$last" -lt 40 ] || complain "full disk: ended at step $last"
[ -s "$folder/failure_rank_0.json" ] || complain "full disk: no failure file"

rm "$scratch/small/filler"
run 2 "$folder" perigee "${options[@]}"
[ "$code" = 0 ] || complain "the next start ended with $code"
grep -qE 'resumed at step [24] from' "$scratch/log" || complain "not resumed where the disk was full"
diff <(numbers "$scratch/whole") <(numbers "$folder") >"$scratch/diff" || complain "losses differ"
diff <(weights "$scratch/whole" step_00000040) <(weights "$folder" step_00000040) >"$scratch/diff" ||
    complain "weights differ"
verdict
