#!/usr/bin/env bash
# What `cmake --install` installs is enough for a first run in any folder: text to sample, shown as commands, with two ranks,
# and again without doing anything twice. Shells find their completion.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
says() {  # says CODE PATTERN WHAT COMMAND...
    local code=0
    "${@:4}" >"$scratch/log" 2>&1 </dev/null || code=$?
    [ "$code" = "$1" ] || complain "$3: exit code $code instead of $1"
    grep -qE -- "$2" "$scratch/log" || complain "$3: does not say '$2'"
}
cmake --install "$PERIGEE_BIN/.." --prefix "$scratch/usr" >"$scratch/log" 2>&1 || complain "install"
for script in launch/setup.sh launch/setup_cuda.sh launch/quickstart.sh; do
    [ ! -e "$scratch/usr/share/perigee/$script" ] || complain "$script builds the program, and is installed"
done
"$scratch/usr/bin/perigee" completion bash | cmp - "$scratch/usr/share/bash-completion/completions/perigee" || complain "completion of bash"
"$scratch/usr/bin/perigee" completion zsh | cmp - "$scratch"/usr/share/zsh/*/_perigee || complain "completion of zsh"
for script in quickstart package setup setup_cuda; do  # none installs or builds anything before it has read its arguments
    says 2 '^usage: ' "$script.sh --help" "$PERIGEE_SOURCE/launch/$script.sh" --help
done

mkdir "$scratch/here"
cd "$scratch/here"
small=(model.num_hidden_layers=2 model.hidden_size=64 model.num_attention_heads=1 model.num_key_value_heads=1
    model.intermediate_size=64 train.steps=3 schedule.warmup_steps=1 eval.samples=2 generate.max_tokens=5 threads=1)
says 0 '^MoBA, last layer full   [0-9.]+ nats' "quickstart" "$scratch/usr/bin/perigee" quickstart "${small[@]}" --ranks 2
grep -qF "$ perigee train $scratch/usr/share/perigee/configs/quickstart.yaml" "$scratch/log" || complain "the command of training"
grep -q 'dp 2 cp 1 tp 1' "$scratch/log" || complain "two ranks"
grep -q '^runs/quickstart/loss.svg ' "$scratch/log" && [ -s runs/quickstart/loss.svg ] || complain "the curve"
[ "$(tail -n 1 "$scratch/log")" = runs/quickstart/report.html ] && [ -s runs/quickstart/report.html ] || complain "the report"
grep -qF "  perigee train $scratch/usr/share/perigee/configs/quickstart.yaml ${small[*]} train.steps=600" "$scratch/log" ||
    complain "the longer training it suggests"
next=$(sed -n 's/^  //p' "$scratch/log" | grep ' check ')
says 0 '^# layout' "the check it suggests" env PATH="$scratch/usr/bin:$PATH" bash -c "$next"
says 0 'Where everything is' "quickstart again" "$scratch/usr/bin/perigee" quickstart "${small[@]}"
grep -q '^== Text' "$scratch/log" && complain "tokens are made again"
[ "$(grep -c '"loss"' runs/quickstart/metrics.jsonl)" = 3 ] || complain "trains again"
full=("${small[@]}" attention.kind=full output_dir="$scratch/full run" train.steps=600)
says 0 '^full attention   [0-9.]+ nats' "quickstart with full attention" "$scratch/usr/bin/perigee" quickstart "${full[@]}" train.steps=2
grep -q '^MoBA' "$scratch/log" && complain "full attention is called MoBA"
grep -qF " 'output_dir=$scratch/full run' train.steps=600 train.steps=2 --prompt" "$scratch/log" || complain "overrides in quotes"
says 0 '^MoBA, 1 of 2 layers full   [0-9.]+ nats' "quickstart with its first layer full" "$scratch/usr/bin/perigee" quickstart \
    "${small[@]}" attention.full_layers.last=0 'attention.full_layers.layers=[0]' output_dir=runs/first
says 2 'schedule.warmup_steps .30. must be at most' "a stage that fails" "$scratch/usr/bin/perigee" quickstart "${small[@]}" schedule.warmup_steps=30
says 2 'there is no typo.idx; perigee tokenize TEXTS --output typo makes it' "text that is not there" "$scratch/usr/bin/perigee" \
    quickstart "${small[@]}" data.train.0.path=typo
[ ! -e typo.bin ] || complain "the manual takes its place"
verdict
