#!/usr/bin/env bash
# A run that is resumed with another model is refused with every key; eval and generate take the model from the
# checkpoint, and what the command line says of it wins. Real processes, two ranks.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
folder=$scratch/run
run 2 "$folder" perigee schedule.warmup_steps=1 train.steps=4
[ "$code" = 0 ] || complain "training"

run 2 "$folder" perigee schedule.warmup_steps=1 train.steps=6 model.rope_theta=500000 attention.block_size=32
[ "$code" = 2 ] || complain "another model: exit $code"
[ "$(grep -c '^perigee: ' "$scratch/log")" = 1 ] || complain "another model: not one message"
for change in 'model.rope_theta: 10000.0 -> 500000.0' 'attention.block_size: 16 -> 32'; do
    grep -qF "  $change" "$scratch/log" || complain "another model: no $change"
done
run 2 "$folder" perigee schedule.warmup_steps=1 train.steps=5 model.rope_theta=500000 checkpoint.allow_model_change=true
[ "$code" = 0 ] || complain "another model, allowed: exit $code"
run 2 "$folder" perigee schedule.warmup_steps=1 train.steps=8 model.rope_theta=500000
[ "$code" = 0 ] && grep -q 'the learning rate rises again: .* at step 6, ' "$scratch/log" || complain "a longer run"

evaluate() {  # evaluate [key=value...]: the loss on stdout
    "$PERIGEE_BIN/perigee" eval "$scratch/eval.yaml" output_dir="$folder" eval.samples=4 "$@" 2>"$scratch/log" |
        grep -o '"eval_loss":[^,]*'
}
cp "$scratch/run.yaml" "$scratch/eval.yaml"
same=$(evaluate model.rope_theta=500000)
of_file=$(evaluate)
[ "$of_file" = "$same" ] || complain "eval computes with the file's rope_theta: $of_file, $same"
grep -qF '  model.rope_theta: 10000.0 -> 500000.0' "$scratch/log" || complain "eval does not say whose model it uses"
other=$(evaluate model.rope_theta=10000)
[ "$other" != "$same" ] || complain "the command line does not win"
full=$(evaluate attention.kind=full)
[ "$full" != "$same" ] || complain "attention.kind=full on the command line does not win"
grep -q 'the command line changes' "$scratch/log" || complain "an override is not said"
sed -i 's/hidden_size: 32/hidden_size: 64/; s/kind: moba/kind: full/' "$scratch/eval.yaml"
[ "$(evaluate)" = "$same" ] || complain "eval with the file of another model"
"$PERIGEE_BIN/perigee" generate "$scratch/eval.yaml" output_dir="$folder" --prompt hello --max-tokens 4 \
    >"$scratch/printed" 2>"$scratch/log" || complain "generate with the file of another model"
grep -qF '  model.hidden_size: 64 -> 32' "$scratch/log" || complain "generate does not say whose model it uses"
verdict
