#!/usr/bin/env bash
# On a GPU whose peak is known, the MFU of `perigee train` is that of `perigee bench` within a point.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/stacked.sh"
cat >"$scratch/run.yaml" <<YAML
model: {vocab_size: 32000, hidden_size: 2048, intermediate_size: 8192, num_hidden_layers: 8, num_attention_heads: 32, num_key_value_heads: 8, head_dim: 64}
attention: {kind: full}
data: {mock_data: true, sequence_length: 8192, document_mask: false}
train: {steps: 40, global_batch_size: 2}
device: cuda
log: {progress: false}
checkpoint: {every: 0}
output_dir: $scratch/run
YAML
"$PERIGEE_BIN/perigee" bench "$scratch/run.yaml" --steps 20 --warmup 5 --brief --json >"$scratch/printed" 2>"$scratch/log" ||
    complain "bench ends with $?"
"$PERIGEE_BIN/perigee" train "$scratch/run.yaml" >"$scratch/log" 2>&1 || complain "train ends with $?"
bench=$(sed -nE 's/.*"mfu":([^,}]*).*/\1/p' "$scratch/printed")
train=$(tail -n 20 "$scratch/run/metrics.jsonl" | sed -nE 's/.*"mfu":([^,}]*).*/\1/p' |
    awk '{ sum += $1 } END { if (NR) print sum / NR }') || complain "no metrics"
[ "$failures" = 0 ] || verdict
[ -n "$bench$train" ] || { echo "the peak of this GPU is not known"; exit 77; }
[ -n "$bench" ] && [ -n "$train" ] && awk -v a="$bench" -v b="$train" 'BEGIN { exit !(a - b < 0.01 && b - a < 0.01) }' ||
    complain "bench '$bench', train '$train'"
echo "MFU of bench $bench, of train $train"
verdict
