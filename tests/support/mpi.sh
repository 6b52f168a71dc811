# Sourced by tests that start real jobs. Jobs log to $scratch/log, which `complain` shows; `verdict` ends the test.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# ranks COUNT PROGRAM [ARGUMENT...]
ranks() { timeout -k 5 120 mpirun -q --oversubscribe -n "$@" >"$scratch/log" 2>&1; }

complain() {
    echo "FAILED: $1"
    cat "$scratch/log"
    failures=$((failures + 1))
}

# A GoogleTest program with a Launch of its own: every rank of one job must report success.
expect_all_pass() {
    local n=$1 passed
    ranks "$@" --gtest_color=no || complain "$n ranks"
    passed=$(grep -c '^\[  PASSED  \] [1-9]' "$scratch/log") || true
    [ "$passed" = "$n" ] || complain "$n ranks: $passed reported success"
}

verdict() {
    [ "$failures" = 0 ] && echo "all passed"
    exit $((failures > 0))
}
