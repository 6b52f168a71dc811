#!/usr/bin/env bash
# SIGTERM or SIGUSR1 to the launcher of two ranks: a whole checkpoint of the last step, exit code 75, and an exact resume.
# A second signal ends the job at once. A checkpoint that is written during an evaluation is whole before that ends.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
# Rank 0 waits at the line of step 8 for what is to happen, so that it meets a run on machines of any speed.
launch() {  # launch FOLDER WHAT: without `timeout` in between, which would pass on signals of its own
    PERIGEE_KILL=write:metrics.jsonl:8 PERIGEE_KILL_BY=$2 "$PERIGEE_SOURCE/launch/mpirun.sh" 2 \
        "$PERIGEE_BIN/perigee_faulty" train "$scratch/run.yaml" output_dir="$1" >"$scratch/log" 2>&1 &
    job=$!
}

run 2 "$scratch/whole" perigee
[ "$code" = 0 ] || complain "unbroken run"

for signal in TERM USR1; do
    folder=$scratch/stopped_$signal
    launch "$folder" wait
    eventually 120 grep -q "waiting for a signal" "$scratch/log" || complain "SIG$signal: does not train"
    begin=$(seconds)
    kill -s "$signal" "$job"
    finish
    echo "SIG$signal: exit code $code after $(since "$begin") s"
    [ "$code" = 75 ] || complain "SIG$signal: exit code $code instead of 75"
    eventually 60 none_left "$folder" || complain "SIG$signal: processes are left"
    done_steps=$(grep -c '"loss"' "$folder/metrics.jsonl")
    [ "$done_steps" -lt 40 ] || complain "SIG$signal: the run was over before"
    grep -q "told to stop: saved at step $done_steps" "$scratch/log" || complain "SIG$signal: not saved at the last step"
    run 2 "$folder" perigee
    [ "$code" = 0 ] || complain "SIG$signal: resume ended with $code"
    grep -q "resumed at step $done_steps " "$scratch/log" || complain "SIG$signal: resumed elsewhere"
    diff <(numbers "$scratch/whole") <(numbers "$folder") >"$scratch/diff" || complain "SIG$signal: losses differ"
    diff <(weights "$scratch/whole" step_00000040) <(weights "$folder" step_00000040) >"$scratch/diff" ||
        complain "SIG$signal: weights differ"
done

# One rank is stopped, so that the job cannot save: only a second signal ends it before the watchdog would.
folder=$scratch/twice
launch "$folder" 19
eventually 120 stopped "$folder" || complain "does not stop"
kill -TERM "$job"
heard() { [ -z "$(find "$TMPDIR" -path '*/perigee-mpirun.*/running')" ]; }  # handling a signal removes the file
eventually 60 heard || complain "the first signal is not handled"
sleep 1
if none_left "$folder"; then complain "one signal ends a job that has not saved"; fi
begin=$(seconds)
kill -TERM "$job"
finish
[ "$code" != 0 ] || complain "second signal: exit code 0"
at_most "$(since "$begin")" 60 || complain "second signal: took $(since "$begin") s"
eventually 60 none_left "$folder" || complain "second signal: processes are left"

# What is written while an evaluation goes on is a checkpoint before that ends. A signal breaks the evaluation off, and the
# resumed run evaluates first.
make_long_evaluation
folder=$scratch/evaluated
arguments=("$scratch/run.yaml" output_dir="$folder" checkpoint.every=4 eval.every=4 $long_evaluation)
"$PERIGEE_SOURCE/launch/mpirun.sh" 2 "$PERIGEE_BIN/perigee" train "${arguments[@]}" >"$scratch/log" 2>&1 &
job=$!
eventually 120 [ -d "$folder/checkpoints/step_00000004" ] || complain "no checkpoint during an evaluation"
if grep -q eval_loss "$folder/metrics.jsonl"; then complain "the evaluation is over"; fi
begin=$(seconds)
kill -USR1 "$job"
finish
[ "$code" = 75 ] || complain "SIGUSR1 in an evaluation: exit code $code instead of 75"
at_most "$(since "$begin")" 60 || complain "SIGUSR1 in an evaluation: took $(since "$begin") s"
eventually 60 none_left "$folder" || complain "SIGUSR1 in an evaluation: processes are left"
grep -q "told to stop: saved at step 4" "$scratch/log" || complain "SIGUSR1 in an evaluation: not saved there"
if grep -q eval_loss "$folder/metrics.jsonl"; then complain "an evaluation that was broken off has a loss"; fi
run 2 "$folder" perigee checkpoint.every=4 eval.every=4 $long_evaluation eval.samples=2
[ "$code" = 0 ] || complain "after an evaluation that was broken off: resume ended with $code"
[ "$(grep -c eval_loss "$folder/metrics.jsonl")" = 10 ] || complain "not every evaluation is there"
grep eval_loss "$folder/metrics.jsonl" | head -n 1 | grep -q '"step":4,' || complain "the resumed run does not evaluate first"
verdict
