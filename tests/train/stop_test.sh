#!/usr/bin/env bash
# SIGTERM or SIGUSR1 to the launcher of two ranks: a whole checkpoint of the last step, a non-zero exit code, and
# an exact resume. A second signal ends the job at once.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
steps=1500  # long enough that a signal after five steps meets a run, also on a fast machine
length=(train.steps=$steps data.sequence_length=128 log.every=1000 checkpoint.every=0)
launch() {  # launch FOLDER: without `timeout` in between, which would pass on signals of its own
    "$PERIGEE_SOURCE/launch/mpirun.sh" 2 "$PERIGEE_BIN/${2:-perigee}" train "$scratch/run.yaml" output_dir="$1" \
        "${length[@]}" >"$scratch/log" 2>&1 &
    job=$!
}

launch "$scratch/whole"
finish
[ "$code" = 0 ] || complain "unbroken run"

for signal in TERM USR1; do
    folder=$scratch/stopped_$signal
    launch "$folder"
    eventually 20 steps_done "$folder" 5 || complain "SIG$signal: does not train"
    begin=$(seconds)
    kill -s "$signal" "$job"
    finish
    took=$(since "$begin")
    echo "SIG$signal: exit code $code after $took s"
    [ "$code" = 75 ] || complain "SIG$signal: exit code $code instead of 75"
    at_most "$took" 10 || complain "SIG$signal: took $took s"
    none_left "$folder" || complain "SIG$signal: processes are left"
    done_steps=$(grep -c '"loss"' "$folder/metrics.jsonl")
    [ "$done_steps" -lt "$steps" ] || complain "SIG$signal: the run was over before"
    grep -q "told to stop: saved at step $done_steps" "$scratch/log" || complain "SIG$signal: not saved at the last step"
    launch "$folder"
    finish
    [ "$code" = 0 ] || complain "SIG$signal: resume ended with $code"
    grep -q "resumed at step $done_steps" "$scratch/log" || complain "SIG$signal: resumed elsewhere"
    diff <(numbers "$scratch/whole") <(numbers "$folder") >"$scratch/diff" || complain "SIG$signal: losses differ"
    diff <(weights "$scratch/whole" step_00001500) <(weights "$folder" step_00001500) >"$scratch/diff" ||
        complain "SIG$signal: weights differ"
done

# One rank is stopped, so that the job cannot save: only a second signal ends it before the watchdog would.
folder=$scratch/twice
launch "$folder"
eventually 20 steps_done "$folder" 5 || complain "does not train"
kill -STOP "$(rank_pid "$folder" 1)"
kill -TERM "$job"
sleep 1
if none_left "$folder"; then complain "one signal ends a job that has not saved"; fi
begin=$(seconds)
kill -TERM "$job"
finish
[ "$code" != 0 ] || complain "second signal: exit code 0"
at_most "$(since "$begin")" 5 || complain "second signal: took $(since "$begin") s"
none_left "$folder" || complain "second signal: processes are left"
verdict
