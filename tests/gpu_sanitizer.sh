#!/usr/bin/env bash
# The kernels' tests on a GPU under compute-sanitizer: memcheck (accesses and leaks of the device) and racecheck (shared
# memory). Minutes; ends with 1 where it finds something.
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
found=0
for tool in memcheck racecheck; do
    for program in kernels_tests ops_tests; do
        echo "== $tool $program"
        "$sanitizer" --tool "$tool" --error-exitcode 99 "$build/bin/$program" --gtest_filter="$filter" --gtest_brief=1 ||
            found=1
    done
done
exit $found
