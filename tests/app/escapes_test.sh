#!/usr/bin/env bash
# Escape sequences in generated text, in paths and in names: a terminal sees them written out and obeys none. A pipe gets
# generated text as it is.
set -uo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
set +e
export OMP_NUM_THREADS=1
command -v script >/dev/null || { echo "no script(1) to make a terminal"; exit 77; }
cat >"$scratch/run.yaml" <<YAML
output_dir: $scratch/run
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2}
data: {mock_data: true, sequence_length: 32}
train: {steps: 1, global_batch_size: 1}
threads: 1
log: {progress: false}
YAML
controls=$'[\x01-\x08\x0b-\x0c\x0e-\x1f\x7f]'
no_controls() { ! tr -d '\r' <"$1" | LC_ALL=C grep -qa "$controls"; }
"$PERIGEE_BIN/perigee" train "$scratch/run.yaml" >/dev/null 2>"$scratch/log" || complain "train"

# An untrained model over bytes writes them all alike.
generate=("$PERIGEE_BIN/perigee" generate "$scratch/run.yaml" "generate.prompt=\"\\e[2J\"" generate.max_tokens=300 generate.temperature=1)
"${generate[@]}" >"$scratch/piped" 2>"$scratch/log" || complain "generate"
no_controls "$scratch/piped" && complain "the pipe does not get the text as it is"
printf -v line '%q ' "${generate[@]}"
script -qec "$line" /dev/null >"$scratch/printed" </dev/null || complain "generate on a terminal"
no_controls "$scratch/printed" || complain "a terminal gets control characters"
grep -qaF '\x1b[2J' "$scratch/printed" || complain "the prompt's escape sequence is not shown"

# Paths in messages, logs and drawings.
name=$'red\x1b[31m\x07'
"$PERIGEE_BIN/perigee" check "$scratch/$name" >"$scratch/printed" 2>"$scratch/log" && complain "a missing configuration"
no_controls "$scratch/log" || complain "a configuration's name"
for tool in tokenize plot convert checkpoint; do
    arguments=("$scratch/$name" -o "$scratch/out")
    [ $tool = plot ] && arguments=("$scratch/$name")
    [ $tool = convert ] && arguments=("$scratch/$name" "$scratch/out")
    [ $tool = checkpoint ] && arguments=(list "$scratch/$name")
    "$PERIGEE_BIN/$tool" "${arguments[@]}" >"$scratch/printed" 2>"$scratch/log" && complain "$tool: a missing file"
    { [ -s "$scratch/log" ] && no_controls "$scratch/log" && no_controls "$scratch/printed"; } || complain "$tool: a name in a message"
done
"$PERIGEE_BIN/perigee" train "$scratch/run.yaml" output_dir="\"$scratch/\\e[31mred\"" >"$scratch/printed" 2>"$scratch/log" || complain "train into an odd folder"
no_controls "$scratch/log" || complain "a folder's name in the log"
no_controls "$scratch/"*red/log.txt || complain "a folder's name in log.txt"
"$PERIGEE_BIN/perigee" plot "$scratch/"*red >"$scratch/printed" 2>"$scratch/log" || complain "plot"
no_controls "$scratch/printed" || complain "a folder's name in a drawing"
seq 100 >"$scratch/text"
"$PERIGEE_BIN/perigee" tokenize "$scratch/text" -o "$scratch/$name" >"$scratch/printed" 2>"$scratch/log" || complain "tokenize"
no_controls "$scratch/printed" || complain "a prefix that tokenize reports"
verdict
