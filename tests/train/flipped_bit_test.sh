#!/usr/bin/env bash
# A bit that flips in the memory of one rank ends the job at the next comparison, with code 9 and the rank's name; the next
# start goes on from the last checkpoint to the numbers of the unbroken run.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
folder=$scratch/run whole=$scratch/whole
options=(parallel.shard=none guard.hash_every=10 ${more_options:-})
ranks=${ranks:-4}
run "$ranks" "$whole" perigee "${options[@]}"
[ "$code" = 0 ] || complain "the unbroken run ended with $code"
weight=model.layers.1.mlp.down_proj.weight
tensors=("$weight" "optimizer.m/$weight" "optimizer.v/$weight" "gradient/$weight")
[ -z "${PERIGEE_BRIEF:-}" ] || tensors=("$weight")
for tensor in "${tensors[@]}"; do
    rm -rf "$folder"
    PERIGEE_FLIP=$tensor:3 PERIGEE_KILL_RANK=2 run "$ranks" "$folder" perigee_faulty "${options[@]}"
    [ "$code" = 9 ] || complain "$tensor: exit code $code"
    grep -q "corruption error: step 30: tensor \`$tensor\` of rank 2 (.*) differs from that of rank 0 (" "$scratch/log" ||
        complain "$tensor: the message"
    run "$ranks" "$folder" perigee "${options[@]}"
    [ "$code" = 0 ] || complain "$tensor: the next start ended with $code"
    grep -q "resumed at step 20 " "$scratch/log" || complain "$tensor: not resumed at step 20"
    diff <(numbers "$whole") <(numbers "$folder") >/dev/null || complain "$tensor: the numbers differ"
done
verdict
