#!/usr/bin/env bash
# `perigee serve` under a thousand requests at once: good ones are answered as when they are alone; clients that leave,
# and requests that are malformed, oversized or too many, change nothing. Memory and pages are constant. Real processes.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
folder=$scratch/run
sed -i 's/^schedule:.*/schedule: {warmup_steps: 5}\nchat: {template: chatml}/' "$scratch/run.yaml"
run 1 "$folder" perigee train.steps=10
[ "$code" = 0 ] || complain "training"
scratch=$scratch PYTHONPATH=$PERIGEE_SOURCE/tests/serve timeout 500 python3 "$PERIGEE_SOURCE/tests/serve/crowd.py" "$folder" ||
    complain "a crowd"
verdict
