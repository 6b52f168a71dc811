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
no_controls() { [ -r "$1" ] && [ "$(tr -d '\r' <"$1" | LC_ALL=C grep -ca "$controls")" = 0 ]; }
# The escape sequence of a name is in this file, written out.
written_out() { no_controls "$1" && grep -qaF '\x1b[31m' "$1"; }
# refuses CODE COMMAND ARGUMENT...: with this exit code and a message that has the name
refuses() {
    local code=0
    "$PERIGEE_BIN/perigee" "${@:2}" >"$scratch/printed" 2>"$scratch/log" || code=$?
    { [ "$code" = "$1" ] && written_out "$scratch/log" && no_controls "$scratch/printed"; } || complain "$2: exit $code"
}
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
refuses 2 check "$scratch/$name"
refuses 3 tokenize "$scratch/$name" -o "$scratch/out"
refuses 3 plot "$scratch/$name"
refuses 2 convert "$scratch/$name" "$scratch/out"
refuses 2 checkpoint verify "$scratch/$name"
for steps in 1 2; do  # the second resumes, and names its checkpoint
    "$PERIGEE_BIN/perigee" train "$scratch/run.yaml" output_dir="\"$scratch/\\e[31mred\"" train.steps=$steps \
        >"$scratch/printed" 2>"$scratch/log" || complain "train into an odd folder"
done
written_out "$scratch/log" || complain "a folder's name in the log"
written_out "$scratch/"*red/log.txt || complain "a folder's name in log.txt"
"$PERIGEE_BIN/perigee" plot "$scratch/"*red >"$scratch/printed" 2>"$scratch/log" || complain "plot"
written_out "$scratch/printed" || complain "a folder's name in a drawing"
seq 100 >"$scratch/text"
"$PERIGEE_BIN/perigee" tokenize "$scratch/text" -o "$scratch/$name" >"$scratch/printed" 2>"$scratch/log" || complain "tokenize"
written_out "$scratch/printed" || complain "a prefix that tokenize reports"
verdict
