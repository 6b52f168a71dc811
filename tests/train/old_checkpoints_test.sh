#!/usr/bin/env bash
# Checkpoints of earlier programs, kept in tests/checkpoint/fixtures: each is whole, evaluates, converts, and a run resumes
# from it with the losses that the program which wrote it had. How to add one: CONTRIBUTING.md.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
export OMP_NUM_THREADS=1
perigee() { "$PERIGEE_BIN/perigee" "$@" >"$scratch/printed" 2>"$scratch/log"; }

found=0
for fixture in "$PERIGEE_SOURCE"/tests/checkpoint/fixtures/*/; do
    name=$(basename "$fixture")
    found=$((found + 1))
    run=$scratch/$name
    mkdir -p "$run/checkpoints"
    cp -r "$fixture"/step_* "$run/checkpoints/"
    perigee checkpoint verify "$run" || complain "$name: not whole"
    perigee eval "$fixture/run.yaml" output_dir="$run" || complain "$name: eval"
    grep -q '"eval_loss":' "$scratch/printed" || complain "$name: no loss"
    perigee convert "$run" "$run.hf" --config "$fixture/run.yaml" || complain "$name: convert"
    perigee train "$fixture/run.yaml" output_dir="$run" || complain "$name: train"
    grep -q "resumed at step 3 " "$run/log.txt" || complain "$name: it did not resume"
    # The losses were computed on another processor, perhaps.
    grep -o '"step":[0-9]*,"loss":[0-9.e-]*' "$run/metrics.jsonl" | sed 's/"step":\([0-9]*\),"loss":/\1 /' |
        paste -d ' ' - "$fixture/losses.txt" |
        awk '{ d = $2 - $4; bad += $1 != $3 || d * d > 1e-10 } END { exit bad || NR != 3 }' ||
        complain "$name: other losses: $(grep -o '"loss":[0-9.e-]*' "$run/metrics.jsonl" | tr '\n' ' ')"
done
[ "$found" -ge 2 ] || complain "only $found fixtures"
verdict
