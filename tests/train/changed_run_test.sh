#!/usr/bin/env bash
# A run that is resumed with another model is refused with every key; other options, data and runs are listed; ranks with
# other options than rank 0 are refused; eval and generate take the model from the checkpoint, and what the command line
# says of it wins. Real processes.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
folder=$scratch/run
says() { for line in "$@"; do grep -qF -- "$line" "$scratch/log" || complain "not said: $line"; done; }

# Two data sets of as many tokens.
mkdir "$scratch/data" && cp "$PERIGEE_SOURCE/README.md" "$scratch/a.txt" && tr e i <"$scratch/a.txt" >"$scratch/b.txt"
for text in a b; do
    "$PERIGEE_BIN/perigee" tokenize "$scratch/$text.txt" -o "$scratch/data/$text" >"$scratch/log" 2>&1 || complain "tokenize"
done
use() { cp "$scratch/data/$1.bin" "$scratch/data/now.bin" && cp "$scratch/data/$1.idx" "$scratch/data/now.idx"; }
use a
sed -i "s|mock_data: true|train: [{path: $scratch/data/now}], validation: [{path: $scratch/data/a}]|" "$scratch/run.yaml"
options=(schedule.warmup_steps=1 checkpoint.async=false)
run 2 "$folder" perigee "${options[@]}" train.steps=4
[ "$code" = 0 ] || complain "training"

run 2 "$folder" perigee "${options[@]}" train.steps=6 model.rope_theta=500000 model.rms_norm_eps=1e-6 \
    model.num_attention_heads=4 attention.block_size=32 attention.kind=full
[ "$code" = 2 ] || complain "another model: exit $code"
[ "$(grep -c '^perigee: ' "$scratch/log")" = 1 ] || complain "another model: not one message"
says '  model.rope_theta: 10000.0 -> 500000.0' '  model.rms_norm_eps: 1e-05 -> 1e-06' \
    '  model.num_attention_heads: 2 -> 4' '  attention.kind: "moba" -> "full"' 'do not fit the other model: '
run 2 "$folder" perigee "${options[@]}" train.steps=6 attention.block_size=32
[ "$code" = 2 ] || complain "another block size: exit $code"
says '  attention.block_size: 16 -> 32' checkpoint.allow_model_change=true
run 2 "$folder" perigee "${options[@]}" train.steps=5 model.rope_theta=500000 checkpoint.allow_model_change=true
[ "$code" = 0 ] || complain "another model, allowed: exit $code"

train=("$PERIGEE_BIN/perigee" train "$scratch/run.yaml" output_dir="$scratch/unlike")
ranks 1 "${train[@]}" : -n 1 "${train[@]}" optimizer.lr=1 && complain "ranks with other options train"
says 'rank 1 has other options than rank 0' '  optimizer.lr: 0.0003 -> 1.0'

eval=("$PERIGEE_BIN/perigee" eval "$scratch/run.yaml" output_dir="$folder")
ranks 1 "${eval[@]}" : -n 1 "${eval[@]}" checkpoint.resume=never && complain "ranks with other options evaluate"
says 'rank 1 has other options than rank 0' '  checkpoint.resume: "auto" -> "never"'

use b
run 2 "$folder" perigee "${options[@]}" train.steps=8 model.rope_theta=500000 optimizer.lr=0.001 \
    optimizer.weight_decay=0.3 schedule.decay=linear train.global_batch_size=2
[ "$code" = 0 ] || complain "a longer run: exit $code"
says '  optimizer.lr: 0.0003 -> 0.001' '  optimizer.weight_decay: 0.1 -> 0.3' '  schedule.decay: "cosine" -> "linear"' \
    '  train.global_batch_size: 4 -> 2' '  train.steps: 5 -> 8' '  contents of data.train.0: ' \
    'the learning rate rises again: '
run 2 "$scratch/other" perigee "${options[@]}" train.steps=10 model.rope_theta=500000 \
    checkpoint.resume="$folder/checkpoints/step_00000008"
[ "$code" = 0 ] || complain "another run's checkpoint: exit $code"
says 'the checkpoint is of another run, '

evaluate() {  # evaluate FILE [key=value...]: the loss on stdout
    local file=$1
    shift
    "$PERIGEE_BIN/perigee" eval "$scratch/$file" output_dir="$folder" eval.samples=4 "$@" 2>"$scratch/log" |
        grep -o '"eval_loss":[^,]*'
}
sed '/^model:/d; /^attention:/d' "$scratch/run.yaml" >"$scratch/bare.yaml"
same=$(evaluate run.yaml model.rope_theta=500000)
[ "$(evaluate run.yaml)" = "$same" ] || complain "eval computes with another rope_theta than the checkpoint"
[ "$(evaluate bare.yaml)" = "$same" ] || complain "eval with a file that names no model"
if grep -q 'the file' "$scratch/log"; then complain "eval names what the file does not say: $(cat "$scratch/log")"; fi
other=$(evaluate bare.yaml model.rope_theta=10000)
[ "$other" != "$same" ] || complain "the command line does not win"
full=$(evaluate bare.yaml attention.kind=full)
[ "$full" != "$same" ] || complain "attention.kind=full on the command line does not win"
says 'the command line changes' '  attention.kind: "moba" -> "full"'
if grep -q 'block_size' "$scratch/log"; then complain "full attention has no blocks to speak of"; fi
sed 's/block_size: 16/block_size: 32/' "$scratch/run.yaml" >"$scratch/coarse.yaml"
[ "$(evaluate coarse.yaml attention.block_size=16)" = "$same" ] || complain "the checkpoint's block size on the command line"
if grep -q 'the file' "$scratch/log"; then complain "eval names a key that the command line gives: $(cat "$scratch/log")"; fi
[ "$(evaluate coarse.yaml)" = "$same" ] || complain "eval with the file of another block size"
says '  attention.block_size: 32 -> 16'
sed 's/hidden_size: 32/hidden_size: 64/; s/kind: moba/kind: full/' "$scratch/run.yaml" >"$scratch/another.yaml"
[ "$(evaluate another.yaml)" = "$same" ] || complain "eval with the file of another model"
says "the checkpoint's model is used, not the file's" '  model.hidden_size: 64 -> 32' '  attention.kind: "full" -> "moba"'
"$PERIGEE_BIN/perigee" generate "$scratch/another.yaml" output_dir="$folder" --prompt hello --max-tokens 4 \
    >"$scratch/printed" 2>"$scratch/log" || complain "generate with the file of another model"
says '  model.hidden_size: 64 -> 32'

# A schedule on the command line, as in training.
schedule='attention.schedule=[{step: 0, kind: full}, {step: 1, kind: moba}]'
run 1 "$scratch/scheduled" perigee "${options[@]}" train.steps=2 "$schedule"
[ "$code" = 0 ] || complain "a schedule: exit $code"
folder=$scratch/scheduled
[ -n "$(evaluate run.yaml "$schedule")" ] || complain "eval with the schedule of training"
if grep -q 'changes the checkpoint' "$scratch/log"; then complain "the schedule of training is no change: $(cat "$scratch/log")"; fi
verdict
