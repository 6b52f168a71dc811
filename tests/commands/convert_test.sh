#!/usr/bin/env bash
# From a run to a Hugging Face folder, to a checkpoint, and on into another run, as a user does it; and what
# looks into all of them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export PATH=$PERIGEE_BIN:$PATH OMP_NUM_THREADS=1

fail() { echo "FAILED: $*" >&2; exit 1; }
expect_failure() {  # exit code, pattern of the message, command...
    local code=$1 pattern=$2 status=0
    shift 2
    "$@" >out 2>err || status=$?
    [ "$status" -eq "$code" ] || fail "exit code $status instead of $code: $*: $(cat out err)"
    grep -q -- "$pattern" out err || fail "no '$pattern' in: $(cat out err)"
}

cat >run.yaml <<'YAML'
output_dir: run
model: {vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2}
attention: {kind: full, block_size: 16, top_k: 2, full_layers: {last: 1}, schedule: [{step: 2, kind: moba}]}
data: {mock_data: true, sequence_length: 32}
train: {steps: 3, global_batch_size: 2}
eval: {samples: 2}
watchdog: {enabled: false}
YAML
perigee train run.yaml >log 2>&1 || fail "training: $(cat log)"

perigee convert run hf >out
[ "$(cat out)" = "hf: a Hugging Face folder of run/checkpoints/step_00000003" ] || fail "convert said: $(cat out)"
grep -q '"LlamaForCausalLM"' hf/config.json || fail "architecture: $(cat hf/config.json)"
grep -q '"kind": "moba"' hf/config.json || fail "the attention of the last step: $(cat hf/config.json)"
cp -r run/checkpoints/step_00000003 moved
perigee convert moved moved-hf >out
cmp hf/config.json moved-hf/config.json || fail "a checkpoint outside of its run does not say which model it is of"
perigee checkpoint diff run hf >out || true  # the checkpoint has the optimizer's moments besides
grep -q '^21 tensors are equal' out && grep -q 'only in the first  optimizer.m/' out || fail "diff: $(cat out)"

echo '{"some": "tokenizer"}' >hf/tokenizer.json
perigee convert hf checkpoint >out
perigee checkpoint diff hf checkpoint >out || fail "diff: $(cat out)"
perigee checkpoint verify checkpoint | grep -q '21 tensors, each stored once' || fail "verify"
perigee checkpoint inspect checkpoint >out
grep -q 'f32 *\[320, 32\] *model.embed_tokens.weight' out && grep -q 'rank_0000.h5 .*sha256 [0-9a-f]\{64\}' out ||
    fail "inspect: $(cat out)"
perigee checkpoint inspect hf | grep -q "F32 *\[320, 32\] *model.embed_tokens.weight" || fail "inspect of a folder"
perigee convert checkpoint back >out
cmp hf/model.safetensors back/model.safetensors
cmp hf/config.json back/config.json
cmp hf/tokenizer.json back/tokenizer.json

# Narrower weights are near the others, and come back as they are.
perigee convert checkpoint half --dtype bfloat16 --shard-gb 0.00001 >out
[ "$(find half -name '*.safetensors' | wc -l)" -gt 3 ] && [ -f half/model.safetensors.index.json ] || fail "shards: $(ls half)"
expect_failure 1 'tensors are equal' perigee checkpoint diff checkpoint half
awk '/model.embed_tokens/ && $2 > 0 && $2 < 0.004 && $3 > 0.99999 { found = 1 } END { exit !found }' out || fail "diff: $(cat out)"
perigee convert half half-checkpoint >out
perigee convert half-checkpoint half-back --shard-gb 0.00001 >out
perigee checkpoint diff half half-back >out || fail "diff: $(cat out)"
for file in half/*.safetensors; do cmp "$file" "half-back/$(basename "$file")"; done

# A folder whose tokenizer the run did not use is told; runs of made-up data use none.
printf 'The quick brown fox jumps over the lazy dog, again and again and again.' >text.txt
perigee tokenize text.txt -o text >out
perigee train run.yaml output_dir=other data.mock_data=false 'data.train=[{path: text}]' model.init_from=hf data.tokenizer=bytes \
    >log 2>&1 || fail "training: $(cat log)"
perigee convert other other-hf >out 2>&1
grep -q "warning: the run's data.tokenizer is bytes, .* not those of the tokenizer in hf" out || fail "another tokenizer: $(cat out)"
perigee train run.yaml output_dir=made-up model.init_from=hf data.tokenizer=bytes >log 2>&1 || fail "training: $(cat log)"
perigee convert made-up made-up-hf >out 2>&1
! grep -q warning out || fail "a tokenizer that made-up data do not need: $(cat out)"

# Weights of a run that began from an imported checkpoint have the type of the folder it was made from.
perigee train run.yaml output_dir=typed model.init_from=half-checkpoint data.tokenizer=bytes train.steps=1 >log 2>&1 ||
    fail "training: $(cat log)"
perigee convert typed typed-hf >out
perigee checkpoint inspect typed-hf | grep -q "BF16 *\[320, 32\] *model.embed_tokens.weight" || fail "type: $(perigee checkpoint inspect typed-hf)"

# Options that would have no effect are refused.
expect_failure 2 '--companions nowhere: no such folder' perigee convert checkpoint refused --companions nowhere
expect_failure 2 '--base nowhere: no such folder' perigee convert run refused --base nowhere
expect_failure 2 'hf is a Hugging Face folder, which becomes a checkpoint: --dtype is for exports' \
    perigee convert hf refused --dtype bfloat16
[ ! -e refused ] || fail "a refused conversion left $(ls refused)"

# A run that starts from a folder evaluates as the one that made it, from a checkpoint too.
cat >next.yaml <<'YAML'
model: {init_from: hf}
data: {mock_data: true, sequence_length: 32, tokenizer: bytes}
train: {steps: 1, global_batch_size: 2}
eval: {samples: 2}
watchdog: {enabled: false}
YAML
loss() { sed 's/.*"eval_loss": *\([0-9.e-]*\).*/\1/' "$1"; }
perigee eval run.yaml >first 2>log || fail "eval: $(cat log)"
perigee eval next.yaml output_dir=next >second 2>log || fail "eval of the folder: $(cat log)"
perigee eval next.yaml output_dir=next model.init_from=checkpoint >third 2>log || fail "eval of the checkpoint: $(cat log)"
[ "$(loss first)" = "$(loss second)" ] && [ "$(loss first)" = "$(loss third)" ] ||
    fail "losses: $(cat first second third)"
perigee eval run.yaml attention.top_k=1 >narrow 2>log || fail "eval: $(cat log)"
perigee eval run.yaml attention.top_k=1 attention.kind=full >full 2>log || fail "eval: $(cat log)"
[ "$(loss narrow)" != "$(loss full)" ] || fail "the run's schedule wins over attention.kind on the command line"
perigee generate next.yaml output_dir=next --prompt a --max-tokens 2 >said 2>log || fail "generate: $(cat log)"
# Training and evaluation need data, generation does not.
echo 'model: {init_from: hf}' >bare.yaml
bare=(bare.yaml data.tokenizer=bytes watchdog.enabled=false output_dir=bare)
perigee generate "${bare[@]}" --prompt a --max-tokens 2 >out 2>log || fail "generate without data: $(cat log)"
cmp said out || fail "generate without data says $(cat out) instead of $(cat said)"
expect_failure 2 'data.train: no data sets given' perigee train "${bare[@]}"
expect_failure 2 'data.train: no data sets given' perigee check "${bare[@]}"
expect_failure 2 'data.train: no data sets given' perigee eval "${bare[@]}"
expect_failure 2 'no held-out data to evaluate on: give data.validation' perigee eval "${bare[@]}" data.train.0.path=x
perigee train next.yaml output_dir=next >log 2>&1 || fail "training: $(cat log)"
grep -q 'weights from hf' next/log.txt || fail "log: $(cat next/log.txt)"
perigee eval next.yaml output_dir=next >fourth 2>log || fail "eval: $(cat log)"
[ "$(loss first)" != "$(loss fourth)" ] || fail "training from the folder changed nothing"

expect_failure 2 'back exists already' perigee convert checkpoint back
expect_failure 2 'neither a Hugging Face folder nor a checkpoint nor a run' perigee convert "$work/half/.." elsewhere
mkdir peft && echo '{}' >peft/adapter_config.json
expect_failure 2 "peft holds adapters in PEFT's format, .* lora.init_from=peft" perigee convert peft elsewhere --merge --base hf
perigee train next.yaml output_dir=adapted lora.rank=2 model.init_from="$PWD/hf" >log 2>&1 || fail "adapters: $(cat log)"
mv hf away
expect_failure 4 "there is no folder $PWD/hf, .* --base FOLDER" perigee convert adapted elsewhere --merge
perigee convert adapted merged --merge --base away >log 2>&1 || fail "merge with --base: $(cat log)"
mv away hf
expect_failure 2 'exists already\|there is no folder /nowhere' perigee check next.yaml model.init_from=/nowhere
printf 'x' | dd of=checkpoint/rank_0000.h5 bs=1 seek=5000 conv=notrunc 2>/dev/null
expect_failure 4 'rank_0000.h5 is damaged' perigee checkpoint verify checkpoint
expect_failure 4 'rank_0000.h5 is damaged' perigee convert checkpoint elsewhere
truncate -s -1 half/model-00002-of-*.safetensors
expect_failure 4 'model-00002-of' perigee convert half elsewhere
[ ! -e elsewhere ] && [ ! -e elsewhere.tmp ] || fail "half a folder is left"
