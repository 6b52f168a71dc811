#!/usr/bin/env bash
# Ranks that share a GPU: no layout and stage raises a false alarm of guard.hash_every; a bit that flips in the memory of one
# rank ends the job at the next comparison with code 9 and the rank's name.
set -euo pipefail
source "${PERIGEE_SOURCE:?}/tests/support/stacked_jobs.sh"
folder=$scratch/run
for layout in "shard=none" "shard=optimizer" "shard=weights" "shard=none parallel.tensor=2" \
    "shard=weights parallel.tensor=2" "shard=optimizer parallel.tensor=2 parallel.context=2"; do
    for deterministic in true false; do
        rm -rf "$folder"
        # shellcheck disable=SC2086
        run 4 "$folder" perigee guard.hash_every=1 deterministic=$deterministic parallel.comm=$nccl parallel.$layout
        [ "$code" = 0 ] || complain "$layout, deterministic $deterministic: exit code $code"
    done
    echo "$layout: no alarm in 2 x 20 steps"
done
weight=model.layers.1.mlp.down_proj.weight
for tensor in "$weight" "optimizer.m/$weight" "optimizer.v/$weight" "gradient/$weight" "optimizer.weight/$weight"; do
    [ "$stacked_device$tensor" != "cpuoptimizer.weight/$weight" ] || continue  # the model's own there
    rm -rf "$folder"
    PERIGEE_FLIP=$tensor:3 PERIGEE_KILL_RANK=2 run 4 "$folder" perigee_faulty guard.hash_every=5 parallel.shard=none \
        parallel.comm=$nccl
    [ "$code" = 9 ] || complain "$tensor: exit code $code"
    grep -q "corruption error: step 15: tensor \`$tensor\` of rank 2 (.*) differs from that of rank 0 (" "$scratch/log" ||
        complain "$tensor: the message"
    run 4 "$folder" perigee guard.hash_every=5 parallel.shard=none parallel.comm=$nccl
    [ "$code" = 0 ] || complain "$tensor: the next start ended with $code"
    grep -q "resumed at step 10 " "$scratch/log" || complain "$tensor: not resumed at step 10"
    echo "$tensor: found at step 15, rank 2 named, and gone on from step 10"
done
expect_memory_back
verdict
