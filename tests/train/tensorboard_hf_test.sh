#!/usr/bin/env bash
# TensorBoard's own reader on a run's event files, while it trains and after it was resumed. Needs the package index of
# Python, once: `ctest -L hf`.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
python=$PERIGEE_SOURCE/.venv/bin/python
[ -x "$python" ] || python3 -m venv "$PERIGEE_SOURCE/.venv"
"$python" -c 'import tensorboard' 2>/dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check 'tensorboard==2.20.*' 'setuptools<81'
cat >"$scratch/compare.py" <<'PY'
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
run, at_least = sys.argv[1], int(sys.argv[2])
events = EventAccumulator(run + "/tensorboard", size_guidance={"scalars": 0})
events.Reload()
wanted = {}
for line in open(run + "/metrics.jsonl"):
    if not line.endswith("\n"):
        break
    numbers = json.loads(line)
    for key, value in numbers.items():
        if key != "step" and type(value) in (int, float):
            tag = "eval/" + key[5:] if key.startswith("eval_") else "train/" + key
            wanted.setdefault(tag, {})[numbers["step"]] = value
steps = len(wanted["train/loss"])
assert steps >= at_least, steps
for tag, values in wanted.items():
    found = {e.step: e.value for e in events.Scalars(tag)}
    assert len(found) == len(events.Scalars(tag)), (tag, "has a step twice")
    for step, value in values.items():
        if step > at_least:  # of a run that goes on, the last lines may not be in both files yet
            break
        assert abs(found[step] - value) <= 1e-6 * abs(value), (tag, step, found[step], value)
    if at_least == steps:
        assert sorted(found) == sorted(values), (tag, len(found), len(values))
print(len(wanted), "curves of", steps, "steps")
PY
options=(log.tensorboard=true eval.every=10 checkpoint.every=20)
start 1 "$scratch/live" perigee "${options[@]}" train.steps=1000000 checkpoint.every=0
eventually 60 steps_done "$scratch/live" 30 || complain "does not train"
"$python" "$scratch/compare.py" "$scratch/live" 20 || complain "a live run"
kill -KILL $(processes "$scratch/live")
finish
run 1 "$scratch/run" perigee "${options[@]}" train.steps=40
rm -r "$scratch/run/checkpoints/step_00000040"
run 1 "$scratch/run" perigee "${options[@]}" train.steps=40
[ "$code" = 0 ] || complain "resumed: exit code $code"
"$python" "$scratch/compare.py" "$scratch/run" 40 || complain "a resumed run"
verdict
