#!/usr/bin/env bash
# `perigee checkpoint` and `perigee convert` of runs with damaged checkpoints, narrow moments and frozen weights, and of
# folders that are something else.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export PATH=$PERIGEE_BIN:$PATH OMP_NUM_THREADS=1

fail() { echo "FAILED: $*" >&2; exit 1; }
expect() {  # exit code, pattern of what it says, command...
    local code=$1 pattern=$2 status=0
    shift 2
    "$@" >out 2>err || status=$?
    [ "$status" -eq "$code" ] || fail "exit code $status instead of $code: $*: $(cat out err)"
    cat out err | tr '\n' ' ' | grep -q -- "$pattern" || fail "no '$pattern' in: $(cat out err)"
}

cat >run.yaml <<'YAML'
output_dir: runs/run
model: {vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2}
attention: {kind: full}
data: {mock_data: true, sequence_length: 32}
optimizer: {moments: bf16}
train: {steps: 3, global_batch_size: 2, freeze: ["model.embed_tokens.weight", "model.layers.0.*"]}
checkpoint: {every: 1}
eval: {samples: 2}
watchdog: {enabled: false}
YAML
perigee train run.yaml >log 2>&1 || fail "training: $(cat log)"
steps=runs/run/checkpoints

# Frozen weights that began at random are in no file; the seed gives them again.
expect 0 "^hf: a Hugging Face folder of $steps/step_00000003 " perigee convert runs/run hf
loss() { sed 's/.*"eval_loss": *\([0-9.e-]*\).*/\1/' "$1"; }
perigee eval run.yaml >first 2>log || fail "eval: $(cat log)"
perigee eval run.yaml model.init_from=hf output_dir=none 'train.freeze=[]' >second 2>log || fail "eval: $(cat log)"
[ -n "$(loss first)" ] && [ "$(loss first)" = "$(loss second)" ] || fail "losses: $(cat first second)"
sed 's/hidden_size: 32,/& initializer_range: 0.03,/' run.yaml >other.yaml
expect 2 'are not the random ones of its seed .*--base' perigee convert runs/run other --config other.yaml
[ ! -e other ] && [ ! -e other.tmp ] || fail "half a folder is left"
# So it does for the model below adapters.
sed '/optimizer/d; s/, freeze: .*/}/; s/runs.run/lora/' run.yaml >lora.yaml
perigee train lora.yaml lora.rank=2 >log 2>&1 || fail "training: $(cat log)"
expect 0 "^merged: a Hugging Face folder of lora/checkpoints/step_00000003 " perigee convert lora merged --merge
perigee eval lora.yaml lora.rank=2 >first 2>log || fail "eval: $(cat log)"
perigee eval lora.yaml model.init_from=merged output_dir=none >second 2>log || fail "eval: $(cat log)"
awk -v a="$(loss first)" -v b="$(loss second)" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-10) }' ||
    fail "losses: $(cat first second)"

# Moments in bf16 are compared too.
expect 0 ' bf16 .*optimizer.m/' perigee checkpoint inspect runs/run
expect 0 'optimizer.m/model.norm.weight.* 0 are not ' perigee checkpoint diff runs/run $steps/step_00000003
expect 1 'tensors are equal' perigee checkpoint diff $steps/step_00000002 $steps/step_00000003
awk '$4 == "optimizer.m/model.norm.weight" && $1 > 0 && $1 < 1 && $3 > -1 && $3 < 1 { found = 1 } END { exit !found }' out ||
    fail "diff of moments: $(cat out)"

# Every checkpoint of a run is verified, and one that is damaged is named.
expect 0 'step_00000003: every .*step_00000002: every .*step_00000001: every ' perigee checkpoint verify runs/run
[ "$(wc -l <out)" -eq 3 ] || fail "lines: $(cat out)"
cp -r $steps/step_00000003 no_manifest
rm no_manifest/manifest.json
printf 'x' | dd of=$steps/step_00000003/rank_0000.h5 bs=1 seek=5000 conv=notrunc 2>/dev/null
damage='step_00000003: damaged: .*rank_0000.h5 is damaged: its SHA-256 .*step_00000002: every .*step_00000001: every '
expect 4 "$damage.*not every checkpoint in $steps is whole: 2 of 3 are" perigee checkpoint verify runs/run
expect 4 'rank_0000.h5 is damaged' perigee checkpoint verify $steps/step_00000003
expect 0 'step_00000002: every' perigee checkpoint verify $steps/step_00000002
expect 4 'no_manifest is not a checkpoint: it has no manifest.json' perigee checkpoint verify no_manifest
expect 0 "^older: a Hugging Face folder of $steps/step_00000002 " perigee convert runs/run older
mv $steps/step_00000003 $steps/step_00000003.damaged
expect 0 'step_00000002: every .*step_00000003.damaged: set aside as damaged' perigee checkpoint verify runs/run
mv $steps/step_00000001 $steps/step_00000005
expect 4 'step_00000005: damaged: .*it is of step 1; the folder.s name says step 5' perigee checkpoint verify runs/run

# What has no hashes, and what is something else.
expect 2 'hf is a Hugging Face folder: it has no hashes to verify' perigee checkpoint verify hf
expect 0 'tensors, ' perigee checkpoint inspect hf
for command in verify inspect 'diff hf'; do
    what='is neither a run, a checkpoint nor a Hugging Face folder'
    expect 2 "/nonexist $what: it does not exist" perigee checkpoint $command /nonexist
    expect 2 "runs $what *\$" perigee checkpoint $command runs
    expect 2 "run.yaml $what *\$" perigee checkpoint $command run.yaml
    expect 2 "checkpoints $what: name the run that it belongs to" perigee checkpoint $command $steps
done
mkdir runs/young
touch runs/young/run.json
expect 4 'there is no checkpoint in runs/young' perigee checkpoint verify runs/young
expect 4 'there is no checkpoint in runs/young' perigee checkpoint inspect runs/young
