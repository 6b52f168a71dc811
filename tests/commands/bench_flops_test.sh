#!/usr/bin/env bash
# `perigee bench` and `perigee train` count the same FLOPs for a token: what both MFUs are made of.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
for attention in "kind: full" "kind: moba, block_size: 32, top_k: 3, full_layers: {last: 1}"; do
    cat >"$scratch/run.yaml" <<YAML
model: {vocab_size: 320, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 2}
attention: {$attention}
data: {mock_data: true, sequence_length: 512, document_mask: false}
train: {steps: 2, global_batch_size: 2}
threads: 1
log: {progress: false}
output_dir: $scratch/run
YAML
    "$PERIGEE_BIN/perigee" bench "$scratch/run.yaml" --steps 1 --warmup 1 --brief --json >"$scratch/printed" 2>"$scratch/log" ||
        complain "bench ends with $?"
    "$PERIGEE_BIN/perigee" train "$scratch/run.yaml" checkpoint.every=0 >"$scratch/log" 2>&1 || complain "train ends with $?"
    per_token() { tail -n 1 "$1" | sed -E 's/.*"tflops":([^,}]*).*"tokens_per_s":([^,}]*).*/\1 \2/; s/.*"tokens_per_s":([^,}]*).*"tflops":([^,}]*).*/\2 \1/'; }
    awk -v bench="$(per_token "$scratch/printed")" -v train="$(per_token "$scratch/run/metrics.jsonl")" 'BEGIN {
        split(bench, x, " "); split(train, y, " "); b = x[1] / x[2]; t = y[1] / y[2]
        exit !(b > 1e-7 && b / t < 1.0001 && t / b < 1.0001) }' || complain "$attention: bench counts $(per_token "$scratch/printed"), train $(per_token "$scratch/run/metrics.jsonl")"
    rm -r "$scratch/run"
done
for option in --steps --warmup; do
    for number in 0 1000001 99999999999999999999; do
        code=0
        "$PERIGEE_BIN/perigee" bench "$scratch/run.yaml" "$option" "$number" >"$scratch/printed" 2>"$scratch/log" || code=$?
        [ "$code" = 2 ] && grep -qE -- "^perigee: $option: .*1 (to|-) 1000000" "$scratch/log" || complain "$option $number: exit code $code"
    done
done
verdict
