#!/usr/bin/env bash
# Pipes, devices and folders in the place of a file, and a data file that shrinks under a run: each ends at once with the
# documented code and a message that names the path. Nothing may wait for ever.
set -uo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
set +e
bin=$PERIGEE_BIN
export OMP_NUM_THREADS=1

# expect CODE PATTERN NAME COMMAND...
expect() {
    local code=$1 pattern=$2 name=$3
    shift 3
    timeout 60 "$@" >"$scratch/printed" 2>"$scratch/log" </dev/null
    local got=$?
    [ "$got" = "$code" ] || complain "$name: exit $got, expected $code"
    grep -qE -- "$pattern" "$scratch/log" || complain "$name: no message matches $pattern"
}

cat >"$scratch/good.yaml" <<YAML
output_dir: $scratch/run
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 2, global_batch_size: 2}
threads: 1
log: {progress: false}
YAML
good=$scratch/good.yaml
seq 1 4000 >"$scratch/text"
"$bin/perigee" tokenize "$scratch/text" --output "$scratch/tokens" >/dev/null || complain "tokenize"
"$bin/perigee" train "$good" >/dev/null 2>&1 || complain "train"
checkpoint=$(ls -d "$scratch"/run/checkpoints/step_*)

# A pipe nobody writes into, in every place of a file.
pipe=$scratch/pipe
mkfifo "$pipe"
cp -r "$checkpoint" "$scratch/broken"
files=(data.mock_data=false data.train.0.path="$scratch/tokens")
expect 2 'pipe.*is a pipe' "configuration" "$bin/perigee" check "$pipe"
expect 2 '/dev/zero.*device' "configuration, device" "$bin/perigee" check /dev/zero
for part in bin idx; do
    mv "$scratch/tokens.$part" "$scratch/kept"
    ln "$pipe" "$scratch/tokens.$part" 2>/dev/null || mkfifo "$scratch/tokens.$part"
    expect 3 "tokens.$part.*is a pipe" ".$part" "$bin/perigee" train "$good" "${files[@]}" output_dir="$scratch/other"
    mv -f "$scratch/kept" "$scratch/tokens.$part"
done
mkfifo "$scratch/tokens.mask"
expect 3 'tokens.mask.*is a pipe' "loss mask" "$bin/perigee" train "$good" "${files[@]}" output_dir="$scratch/other"
rm "$scratch/tokens.mask"
expect 3 'pipe.*is a pipe' "text" "$bin/perigee" tokenize "$pipe" --output "$scratch/none"
expect 3 'zero.*device' "text, device" "$bin/perigee" tokenize /dev/zero --output "$scratch/none"
mkdir "$scratch/folder" && mkfifo "$scratch/folder/chats.jsonl"
expect 3 'chats.jsonl.*is a pipe' "JSONL in a folder" "$bin/perigee" tokenize "$scratch/folder" --output "$scratch/none"
mkdir "$scratch/tokenizer" && mkfifo "$scratch/tokenizer/tokenizer.json"
expect 3 'tokenizer.json.*is a pipe' "tokenizer" "$bin/perigee" tokenize "$scratch/text" --output "$scratch/none" \
    --tokenizer "$scratch/tokenizer"
mkdir "$scratch/model" && mkfifo "$scratch/model/config.json"
expect 3 'config.json.*is a pipe' "init_from" "$bin/perigee" check "$good" model.init_from="$scratch/model"
for file in manifest.json rank_0000.h5; do
    mv "$scratch/broken/$file" "$scratch/kept"
    mkfifo "$scratch/broken/$file"
    expect 4 "$file.*is a pipe" "checkpoint's $file" "$bin/perigee" generate "$good" checkpoint.resume="$scratch/broken" \
        generate.prompt=x generate.max_tokens=1
    rm "$scratch/broken/$file"
    mv "$scratch/kept" "$scratch/broken/$file"
done
expect 3 'pipe.*is a pipe' "metrics" "$bin/perigee" plot "$pipe"
expect 3 'pipe.*is a pipe' "drawing" "$bin/perigee" plot "$scratch/run" --output "$pipe"
mkdir "$scratch/piped" && mkfifo "$scratch/piped/metrics.jsonl"
expect 3 'metrics.jsonl.*is a pipe' "metrics of a run" "$bin/perigee" train "$good" output_dir="$scratch/piped"
expect 2 'pipe.*is a pipe' "study" "$bin/perigee" study "$pipe"

# A data file that shrinks while a run reads it.
"$bin/perigee" train "$good" "${files[@]}" output_dir="$scratch/shrinking" train.steps=1000000 log.every=1 >/dev/null 2>"$scratch/log" &
run=$!
for _ in $(seq 2400); do grep -qE '^ +3 ' "$scratch/log" && break; sleep 0.05; done
truncate -s 0 "$scratch/tokens.bin"
wait "$run"
code=$?
[ "$code" = 3 ] || complain "shrinking data: exit $code, expected 3"
grep -q '^perigee: data error: .*tokens\.bin shrank' "$scratch/log" || complain "shrinking data: the file is not named"

verdict
