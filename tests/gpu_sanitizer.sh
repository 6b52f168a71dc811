#!/usr/bin/env bash
# The kernels' tests on a GPU under compute-sanitizer: memcheck (accesses and leaks of the device), synccheck (barriers)
# and racecheck (shared memory). Minutes; ends with 1 where it finds something or a test fails. synccheck and racecheck
# look at our kernels only, not at cuDNN's. racecheck leaves out large shapes, which take it longer than all others, and
# the steps of a rank whose lanes are delayed: its kernels have tests of their own. racecheck follows dense
# attention only in a build with -DPERIGEE_RACECHECK=ON, and leaves it out of others. What one thread block does to
# another of its cluster it does not look at.
#   tests/gpu_sanitizer.sh [BUILD] [FILTER]      'GpuFlat*:GpuLanes*': casts, lanes, units and buckets alone
#   tests/gpu_sanitizer.sh --ranks [BUILD]       two ranks that share the GPU, under memcheck: collectives, then training
set -euo pipefail
cd "$(dirname "$0")/.."
two_ranks=
if [ "${1:-}" = --ranks ]; then
    two_ranks=1
    shift
fi
build=${1:-build/cuda}
filter=${2:-*Gpu*.*}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || {
    echo "gpu_sanitizer: no compute-sanitizer here" >&2
    exit 77
}

if [ -n "$two_ranks" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=2
    export NCCL_BUFFSIZE=1048576 NCCL_MAX_CTAS=2  # ranks take turns on the GPU
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    cat >"$scratch/run.yaml" <<'YAML'
model: {vocab_size: 512, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 4, num_attention_heads: 2,
        head_dim: 64}
attention: {kind: moba, block_size: 64, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 256}
train: {steps: 3, global_batch_size: 4, micro_batch_size: 1}
checkpoint: {every: 2}
device: cuda
deterministic: true
parallel: {share_gpu: true, shard: weights, comm: nccl}
log: {progress: false}
YAML
    # NCCL asks CUDA for what some machines do not have: calls that CUDA refuses are no findings.
    # Its kernels read whole words, also where a tensor of bf16 ends within one.
    memcheck=("$sanitizer" --tool memcheck --report-api-errors no --kernel-name-exclude kernel_substring=nccl
        --error-exitcode 99)
    found=0
    for job in "collectives --gpu --gtest_brief=1" "perigee train $scratch/run.yaml output_dir=$scratch/run"; do
        echo "== memcheck, 2 ranks: ${job%% *}"
        # shellcheck disable=SC2086  # a program and its arguments
        mpirun --oversubscribe --bind-to none -n 2 "${memcheck[@]}" "$build/bin/"$job || found=1
    done
    exit $found
fi

large='*AtLength*:*LargeBlocks*:*ManyTilesPerMultiprocessor*:*RandomChoices*:*RepeatsBitwise*'
# They look at time and memory, which the sanitizer takes, or run for long with the kernels of others.
unfit='GpuOverlap*:GpuSteadyState*:GpuGraphs*:GpuPartsOfPasses*'
dense=
grep -q '^PERIGEE_RACECHECK:BOOL=ON' "$build/CMakeCache.txt" || dense=:*GpuDenseKernels*:GpuAttention.Full*
found=0
ran=0
for tool in memcheck synccheck racecheck; do
    options=()
    tests=$filter
    [ "$tool" = memcheck ] || options=(--kernel-name-exclude kernel_substring=cudnn)
    [ "$tool" != racecheck ] || tests=$filter-$large:GpuLanes*$dense
    for program in kernels_tests ops_tests train_tests; do
        [ "$program" != train_tests ] || tests=$tests$([[ $tests == *-* ]] && echo : || echo -)$unfit
        # A program that runs no kernel is an error to the sanitizer.
        [ -n "$("$build/bin/$program" --gtest_list_tests --gtest_filter="$tests" | grep '^  ')" ] || continue
        ran=1
        echo "== $tool $program"
        "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 99 \
            "$build/bin/$program" --gtest_filter="$tests" --gtest_brief=1 || found=1
    done
done
[ $ran = 1 ] || {
    echo "gpu_sanitizer: no test is named $filter" >&2
    exit 2
}
exit $found
