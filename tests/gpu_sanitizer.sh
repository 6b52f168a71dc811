#!/usr/bin/env bash
# The kernels' tests on a GPU under compute-sanitizer: memcheck (accesses and leaks of the device), synccheck (barriers)
# and racecheck (shared memory). Minutes; ends with 1 where it finds something or a test fails. synccheck and racecheck
# look at our kernels only, not at cuDNN's, and racecheck leaves out the tests of large shapes, which take it longer than
# all others.
#   tests/gpu_sanitizer.sh [BUILD] [FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
filter=${2:-*Gpu*.*}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || {
    echo "gpu_sanitizer: no compute-sanitizer here" >&2
    exit 77
}
large='*AtLength*:*LargeBlocks*:*ManyTilesPerMultiprocessor*:*RandomChoices*:*RepeatsBitwise*'
found=0
ran=0
for tool in memcheck synccheck racecheck; do
    options=()
    tests=$filter
    [ "$tool" = memcheck ] || options=(--kernel-name-exclude kernel_substring=cudnn)
    [ "$tool" != racecheck ] || tests=$filter-$large
    for program in kernels_tests ops_tests; do
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
