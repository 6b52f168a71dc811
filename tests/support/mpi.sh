# Sourced by tests that start real jobs. Jobs log to $scratch/log and print to $scratch/printed, which `complain` shows;
# `verdict` ends the test.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Jobs of Open MPI that begin and end at once disturb each other in a common folder; what jobs leave behind is seen here.
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"
failures=0

# ranks COUNT PROGRAM [ARGUMENT...]
ranks() { timeout -k 5 300 mpirun -q --oversubscribe -n "$@" >"$scratch/printed" 2>"$scratch/log"; }

complain() {
    echo "FAILED: $1"
    tail -n 40 "$scratch/log"
    if [ -s "$scratch/printed" ]; then tail -n 40 "$scratch/printed"; fi
    failures=$((failures + 1))
}

# A GoogleTest program with a Launch of its own: every rank of one job must report success. Each says so in a file of its
# own, because mpirun may mix what several ranks print within a line.
expect_all_pass() {
    local n=$1 passed
    rm -rf "$scratch/said"
    ranks "$n" --output-filename "$scratch/said" "${@:2}" --gtest_color=no || complain "$n ranks"
    passed=$(grep -rl '^\[  PASSED  \] [1-9]' "$scratch/said" | wc -l) || true
    [ "$passed" = "$n" ] || complain "$n ranks: $passed reported success"
}

verdict() {
    [ "$failures" = 0 ] && echo "all passed"
    exit $((failures > 0))
}
