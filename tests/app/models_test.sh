#!/usr/bin/env bash
# Every file of configs/models is the model that it names, and fits on the GPUs that it names.
set -uo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
set +e
cd "$PERIGEE_SOURCE" || exit 1
perigee=$PERIGEE_BIN/perigee
declare -A parameters=([llama3.1_8b]=8,030,261,248 [llama3.1_70b]=70,553,706,496 [qwen3_0.6b]=596,049,920
    [qwen3_1.7b]=1,720,574,976 [qwen3_4b]=4,022,468,096 [qwen3_8b]=8,190,735,360 [qwen3_14b]=14,768,307,200
    [qwen3_32b]=32,762,123,264)
declare -A tokens=([8k]=8192 [128k]=131072 [1m]=1048576)
models=("${!parameters[@]}")
lengths=("${!tokens[@]}")
[ -z "${PERIGEE_BRIEF:-}" ] || models=(llama3.1_8b) lengths=(8k)
for model in "${models[@]}"; do
    for length in "${lengths[@]}"; do
        file=configs/models/${model}_$length.yaml
        [ -f "$file" ] || { complain "no $file"; continue; }
        gpus=$(sed -n 's/^# GPUs: \([0-9]*\) H200.*/\1/p' "$file")
        "$perigee" check "$file" --world-size "$gpus" --device h200 >"$scratch/printed" 2>"$scratch/log" || complain "$file: $(cat "$scratch/log")"
        grep -q "^# parameters: ${parameters[$model]}$" "$scratch/printed" || complain "$file: $(grep '^# parameters' "$scratch/printed")"
        grep -q 'left to libraries: fits' "$scratch/printed" || complain "$file does not fit: $(grep '#   memory:' "$scratch/printed")"
        grep -q "  sequence_length: ${tokens[$length]}$" "$scratch/printed" || complain "$file: another length"
        others=$(sed -n 's/^# GPUs: .* or \([0-9]*\) H100.*/\1/p' "$file")
        [ -n "$others" ] || continue
        "$perigee" check "$file" --world-size "$others" --device h100 --fit >"$scratch/printed" 2>"$scratch/log" || complain "$file: $(cat "$scratch/log")"
        grep -q '^parallel:' "$scratch/printed" || complain "$file: $others H100 do not fit"
    done
done
[ "$(find configs/models -name '*.yaml' | wc -l)" = $((${#parameters[@]} * ${#tokens[@]})) ] || complain "files that this test does not know"
verdict
