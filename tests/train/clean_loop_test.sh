#!/usr/bin/env bash
# 20,000 clean steps on real text, the documents and sources of this repository, give no false alarm of the guard.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
mkdir "$scratch/text"
find "$PERIGEE_SOURCE"/{docs,kernels,src} -name '*.md' -o -name '*.cc' -o -name '*.h' | sort |
    while read -r file; do cp "$file" "$scratch/text/$(echo "${file#"$PERIGEE_SOURCE"/}" | tr / _).txt"; done
"$PERIGEE_BIN/perigee" tokenize "$scratch/text" --output "$scratch/tokens" >"$scratch/log" 2>&1 || complain tokenize
cat >"$scratch/run.yaml" <<YAML
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: full}
data: {train: [{path: $scratch/tokens}], sequence_length: 64}
train: {steps: 20000, global_batch_size: 8, micro_batch_size: 8}
optimizer: {lr: 3e-3}
schedule: {warmup_steps: 200}
checkpoint: {every: 0}
threads: 1
log: {progress: false}
YAML
"$PERIGEE_BIN/perigee" train "$scratch/run.yaml" output_dir="$scratch/run" >"$scratch/printed" 2>"$scratch/log" ||
    complain "the run ended with $?"
[ "$(grep -c '"loss"' "$scratch/run/metrics.jsonl")" = 20000 ] || complain "not all steps are there"
alarms=$(grep -c spike_sigmas "$scratch/run/metrics.jsonl") || true
[ "$alarms" = 0 ] || complain "$alarms false alarms"
verdict
