#!/usr/bin/env bash
# Standard input, output and error that are closed, full, or read no more: no log in data files, no success without the
# result, no run that ends with its reader. Any number of ranks evaluates.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
perigee="$PERIGEE_BIN/perigee"
short=("$scratch/run.yaml" train.steps=3 checkpoint.every=3 schedule.warmup_steps=1)

"$perigee" train "${short[@]}" output_dir="$scratch/closed" 0<&- 1>&- 2>&- || complain "closed: exit $?"
python3 - "$scratch/closed" <<'PY' || complain "closed: the log is in metrics.jsonl"
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
assert sum("loss" in step for step in steps) == 3, steps
assert "saved step 3" in open(sys.argv[1] + "/log.txt").read()
PY
"$perigee" checkpoint verify "$scratch/closed/checkpoints/step_00000003" >/dev/null || complain "closed: the checkpoint"

code=0
"$perigee" eval "${short[@]}" output_dir="$scratch/closed" eval.samples=2 >&- 2>"$scratch/log" || code=$?
[ "$code" = 3 ] || complain "closed standard output: exit $code of eval"

for command in "eval ${short[*]} output_dir=$scratch/closed eval.samples=2" \
    "checkpoint inspect $scratch/closed/checkpoints/step_00000003" "check ${short[*]}"; do
    code=0
    # shellcheck disable=SC2086  # a command and its arguments
    "$perigee" $command >/dev/full 2>"$scratch/log" || code=$?
    [ "$code" = 3 ] || complain "full: exit $code of ${command%% *}"
    grep -q "standard output has not taken the result: " "$scratch/log" || complain "full: not said by ${command%% *}"
done

code=0
{ "$perigee" train "${short[@]}" train.steps=30 checkpoint.every=30 output_dir="$scratch/pipe" 2>&1 >/dev/null ||
    echo $? >"$scratch/code"; } | head -n 1 >/dev/null
[ ! -e "$scratch/code" ] || complain "no reader: exit $(cat "$scratch/code")"
[ -d "$scratch/pipe/checkpoints/step_00000030" ] || complain "no reader: the run has not ended"

# --- The same under launch/mpirun.sh.
script=$PERIGEE_SOURCE/launch/mpirun.sh
code=0
"$script" 2 "$perigee" train "${short[@]}" output_dir="$scratch/closed_job" 0<&- 1>&- 2>&- || code=$?
[ "$code" = 0 ] && [ -d "$scratch/closed_job/checkpoints/step_00000003" ] || complain "closed, two ranks: exit $code"
{ "$script" 2 "$perigee" train "${short[@]}" train.steps=30 checkpoint.every=30 log.every=1 output_dir="$scratch/job_pipe" 2>&1 ||
    echo $? >"$scratch/code"; } | head -n 1 >/dev/null
[ ! -e "$scratch/code" ] || complain "no reader, two ranks: exit $(cat "$scratch/code")"
[ -d "$scratch/job_pipe/checkpoints/step_00000030" ] || complain "no reader, two ranks: the run has not ended"
evaluate() { "$script" 2 "$perigee" eval "${short[@]}" output_dir="$scratch/closed" eval.samples=2 2>"$scratch/log"; }
not_taken() {  # WHAT
    [ "$code" = 3 ] || complain "$1 standard output, two ranks: exit $code"
    grep -q "standard output has not taken the result" "$scratch/log" || complain "$1 standard output, two ranks: not said"
}
code=0
evaluate >/dev/full || code=$?
not_taken full
code=0
evaluate >&- || code=$?
not_taken closed

ranks 3 "$perigee" eval "${short[@]}" output_dir="$scratch/closed" eval.samples=5 || complain "three ranks evaluate"
grep -q '"eval_loss"' "$scratch/printed" || complain "three ranks: no loss"
verdict
