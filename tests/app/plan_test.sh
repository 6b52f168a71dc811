#!/usr/bin/env bash
# `check` as a user meets it: at once whatever the sizes, with train's own words where train would refuse, and with the
# share of keys that MoBA attends.
set -uo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
set +e
perigee=$PERIGEE_BIN/perigee
cat >"$scratch/run.yaml" <<YAML
output_dir: $scratch/run
model: {vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 128}
train: {steps: 2, global_batch_size: 64}
threads: 1
device: cpu
log: {progress: false}
YAML
check() { timeout 60 "$perigee" check "$scratch/run.yaml" "$@" >"$scratch/printed" 2>"$scratch/log"; }

# A plan needs no GPU; a run names the host that has too few.
check device=cuda model.head_dim=32 --world-size 64
[ $? = 0 ] || complain "64 GPUs: no plan"
grep -q 'data 64 x context 1 x tensor 1' "$scratch/printed" || complain "64 GPUs: another plan"
ranks 2 "$perigee" train "$scratch/run.yaml" device=cuda model.head_dim=32
[ $? = 2 ] || complain "train on two GPUs without one: not exit 2"
grep -qE "host .* has no GPU for its 2 ranks|built without CUDA" "$scratch/log" || complain "train on two GPUs: other words"
ranks 2 "$perigee" train "$scratch/run.yaml" parallel.comm=nccl
[ $? = 2 ] || complain "NCCL between CPUs: not exit 2"
grep -q "parallel.comm is nccl, which carries tensors between GPUs" "$scratch/log" || complain "NCCL between CPUs: other words"

# --fit names what divides for no layout, and where none fits into memory it fails too.
check model.head_dim=32 --world-size 3 --fit
[ $? = 2 ] || complain "3 GPUs that nothing divides for: not exit 2"
grep -qF "train.global_batch_size (64) must be a multiple of train.micro_batch_size (1) times the data-parallel ranks (3)" "$scratch/log" ||
    complain "3 GPUs: not the batch's words"
grep -q "fits into" "$scratch/printed" "$scratch/log" && complain "3 GPUs: memory is blamed"
echo '{name: tiny, memory_gib: 0.0001}' >"$scratch/tiny.yaml"
check model.head_dim=32 --world-size 1 --fit --device "$scratch/tiny.yaml"
[ $? = 2 ] && grep -q "no layout of 1 GPUs fits into" "$scratch/log" || complain "what fits into no memory: $(cat "$scratch/log")"

for sizes in hidden_size=16392 hidden_size=5002 head_dim=258 head_dim=528; do
    check device=cuda model.head_dim=64 model.$sizes && complain "$sizes: no kernel takes it"
    grep -qE 'RMSNorm over (16392|5002) values: the GPU normalises|heads of (258|528) values: the GPU rotates' "$scratch/log" ||
        complain "$sizes: not the kernels' words"
done
check device=cuda model.head_dim=64 model.hidden_size=16384 || complain "a width that the kernels take"

# Overflowing products and sizes beyond all machines are refused, not fatal.
check parallel.tensor=4294967296 parallel.context=4294967296
[ $? = 2 ] || complain "an overflowing layout: not exit 2"
check model.num_hidden_layers=1000000 train.steps=1000000000000
[ $? = 2 ] || complain "a million layers: not exit 2"
check 'output_dir="runs/a\0b"'
[ $? = 2 ] && grep -q 'NUL' "$scratch/log" || complain "NUL in a path is not refused"
check 'data={mock_data: false, train: [{path: "a\0b"}]}'
[ $? = 2 ] && grep -q 'NUL' "$scratch/log" || complain "NUL in a data path is not refused"

# MoBA that leaves keys out, and MoBA that cannot.
check || complain "check"
grep -q 'MoBA attends 34\.9% of the causal keys' "$scratch/printed" || complain "no share of attended keys"
grep -q 'warning' "$scratch/printed" && complain "a warning without reason"
check attention.top_k=8
grep -q 'MoBA attends 100\.0% of the causal keys' "$scratch/printed" || complain "no share of 100%"
grep -q 'warning: MoBA attends every causal key.*block_size (16).*top_k (8) = 128 tokens' "$scratch/printed" || complain "no warning of MoBA that cannot act"
check attention.full_layers.last=2
grep -q 'warning: MoBA has no layer: attention.full_layers names all of them' "$scratch/printed" || complain "no warning of MoBA without layers"
later=(attention.kind=full 'attention.schedule=[{step: 1, kind: moba}]')
check "${later[@]}"
grep -q 'MoBA attends 34\.9% of the causal keys, from step 2 on' "$scratch/printed" || complain "no share of a later step"

"$perigee" train "$scratch/run.yaml" >"$scratch/printed" 2>"$scratch/log" || complain "train"
grep -qE 'MoBA: blocks of 16, top 2: [0-9.]+% of the causal keys are attended' "$scratch/log" || complain "no share at the start"
[ "$(grep -cE '"attended_share":0\.[0-9]+,' "$scratch/run/metrics.jsonl")" = 2 ] || complain "no share in the metrics"
grep -q 'warning: .*MoBA' "$scratch/log" && complain "a warning of a run that is sparse"
"$perigee" train "$scratch/run.yaml" attention.top_k=8 output_dir="$scratch/full" >"$scratch/printed" 2>"$scratch/log" || complain "train"
[ "$(grep -c 'warning: step 1: MoBA attends every causal key' "$scratch/log")" = 1 ] || complain "MoBA cannot act, and nothing says so"
grep -q '"attended_share":1,' "$scratch/full/metrics.jsonl" || complain "no share of 1 in the metrics"
ranks 2 "$perigee" train "$scratch/run.yaml" attention.top_k=8 output_dir="$scratch/two"
[ "$(grep -c 'MoBA attends every causal key' "$scratch/log")" = 1 ] || complain "every rank says that MoBA cannot act"
"$perigee" train "$scratch/run.yaml" attention.full_layers.last=2 output_dir="$scratch/none" >"$scratch/printed" 2>"$scratch/log" || complain "train"
grep -q 'warning: MoBA has no layer' "$scratch/log" || complain "MoBA has no layer, and nothing says so"
"$perigee" train "$scratch/run.yaml" "${later[@]}" output_dir="$scratch/later" >"$scratch/printed" 2>"$scratch/log" || complain "train"
grep -qE "MoBA: .*% of the causal keys are attended in the first micro-batch's documents from step 2 on" "$scratch/log" || complain "no share of a later step at the start"
[ "$(grep -c attended_share "$scratch/later/metrics.jsonl")" = 1 ] || complain "a share of a step in full"
"$perigee" train "$scratch/run.yaml" attention.kind=full output_dir="$scratch/dense" >"$scratch/printed" 2>"$scratch/log" || complain "train"
grep -q 'attended_share' "$scratch/dense/metrics.jsonl" && complain "a share without MoBA"
verdict
