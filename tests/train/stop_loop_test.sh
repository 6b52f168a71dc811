#!/usr/bin/env bash
# Stop signals at random moments, in real processes: stop_loop_test.sh [COUNT] [SEED]. Half of them to `perigee`, from
# main's first line on, half to launch/mpirun.sh with two ranks, from its first line on; TERM, INT, USR1 and HUP; delays
# from 0 to the length of a run, most of them in the first part. Each ends with code 75, with a checkpoint of the last step
# if a step was done; nothing is left behind; the next start repeats the unbroken run bit for bit. A signal that comes after
# the run was complete counts for nothing. Long: `ctest -L long`.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
source "$PERIGEE_SOURCE/tests/support/signals.sh"
count=${1:-${PERIGEE_STOPS:-300}}
seed=${2:-${PERIGEE_SEED:-$RANDOM}}
RANDOM=$seed
folder=$scratch/stopped
last=step_00000040

declare -A how length
how[1]="$PERIGEE_BIN/perigee" how[2]="$PERIGEE_SOURCE/launch/mpirun.sh 2 $PERIGEE_BIN/perigee"
for n in 1 2; do
    began=$(seconds)
    begin ${how[$n]} train "$scratch/run.yaml" output_dir="$scratch/whole_$n"
    finish
    length[$n]=$(since "$began")
    [ "$code" = 0 ] || complain "unbroken run, $n ranks: exit code $code"
done

stops=0 empty=0 saved=0 over=0
echo "$count signals, seed $seed, in runs of ${length[1]} s (1 rank) and ${length[2]} s (2 ranks)"
while [ "$stops" -lt "$count" ]; do
    n=$((1 + stops % 2))
    signals=(TERM INT USR1 HUP)
    signal=${signals[RANDOM % 4]}
    delay=$(awk -v u="$(early)" -v length_s="${length[$n]}" 'BEGIN { printf "%.4f", u * length_s }')
    what="SIG$signal after $delay s, $n ranks"
    rm -rf "$folder"
    begin ${how[$n]} train "$scratch/run.yaml" output_dir="$folder"
    pause "$delay"
    kill -s "$signal" "$job" 2>/dev/null || true
    finish
    done_steps=$(grep -c '"loss"' "$folder/metrics.jsonl" 2>/dev/null) || true
    if [ "$code" = 0 ] && [ "${done_steps:-0}" = 40 ]; then
        over=$((over + 1))
        continue
    fi
    stops=$((stops + 1))
    [ "$code" = 75 ] || complain "$what: exit code $code instead of 75"
    eventually 10 job_ended "$folder" || complain "$what: processes are left"
    clean || complain "$what: left behind: $(left_behind)"
    if [ "${done_steps:-0}" -gt 0 ]; then
        saved=$((saved + 1))
        [ -s "$folder/checkpoints/$(printf 'step_%08d' "$done_steps")/manifest.json" ] ||
            complain "$what: $done_steps steps done and not saved"
    else
        empty=$((empty + 1))
        grep -q "told to stop.* nothing to save" "$scratch/log" || complain "$what: it does not say that nothing was saved"
    fi
    begin ${how[$n]} train "$scratch/run.yaml" output_dir="$folder"
    finish
    [ "$code" = 0 ] || complain "$what: the next start ended with $code"
    diff <(numbers "$scratch/whole_$n") <(numbers "$folder") >"$scratch/diff" || complain "$what: losses differ"
    diff <(weights "$scratch/whole_$n" $last) <(weights "$folder" $last) >"$scratch/diff" || complain "$what: weights differ"
    clean || complain "$what: left behind by the next start: $(left_behind)"
done
echo "$stops signals: $saved stopped with a checkpoint, $empty before the first step; $over more came after the end"
verdict
