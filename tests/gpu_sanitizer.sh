#!/usr/bin/env bash
# The kernels' tests on a GPU under compute-sanitizer: memcheck (accesses and leaks of the device), synccheck (barriers)
# and racecheck (shared memory). Minutes; ends with 1 where it finds something. racecheck looks at our kernels only, not
# at cuDNN's, and leaves out the tests of large shapes, which take it longer than all others.
#   tests/gpu_sanitizer.sh [BUILD] [FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
filter=${2:-*Gpu*}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || {
    echo "gpu_sanitizer: no compute-sanitizer here" >&2
    exit 77
}
large='*LargeBlocks*:*ManyTilesPerMultiprocessor*:*RandomChoices*:*RepeatsBitwise*'
found=0
for tool in memcheck synccheck racecheck; do
    options=()
    skipped=
    if [ "$tool" = racecheck ]; then
        options=(--kernel-name-exclude kernel_substring=cudnn)
        skipped=-$large
    fi
    for program in kernels_tests ops_tests; do
        echo "== $tool $program"
        "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 99 \
            "$build/bin/$program" --gtest_filter="$filter$skipped" --gtest_brief=1 || found=1
    done
done
exit $found
