#!/usr/bin/env bash
# Runs bin/mpi_comm between real processes: its checks on 1 to 4 ranks, then the ways in which a job ends.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
program=${PERIGEE_BIN:?}/mpi_comm
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

complain() {
    echo "FAILED: $1"
    cat "$scratch/log"
    failures=$((failures + 1))
}

ranks() { timeout -k 5 120 mpirun --oversubscribe -n "$@" >"$scratch/log" 2>&1; }

"$program" >"$scratch/log" 2>&1 || complain "alone"
for n in 1 2 3 4; do
    ranks "$n" "$program" --gtest_color=no || complain "$n ranks"
    # Every rank must have run its tests, all in one job.
    passed=$(grep -c '^\[  PASSED  \] [1-9]' "$scratch/log") || true
    [ "$passed" = "$n" ] || complain "$n ranks: $passed reported success"
done

# how, exit code expected, messages expected. A killed rank leaves 128 + 9.
expect_end() {
    local how=$1 code=$2 messages=$3 token="--token=$$-$1" status=0 begin=$SECONDS
    ranks 3 "$program" "--fail=$how" "--code=$code" "$token" || status=$?
    [ "$status" = "$code" ] || complain "$how: mpirun returned $status, expected $code"
    [ "$(grep -c '^perigee: .*error: told to fail' "$scratch/log")" = "$messages" ] || complain "$how: messages"
    [ $((SECONDS - begin)) -le 10 ] || complain "$how: took $((SECONDS - begin)) s to end"
    ! pgrep -f -- "$token" >/dev/null || complain "$how: processes left behind"
}
expect_end all 5 1
expect_end one 7 1
expect_end watchdog 6 1
expect_end kill 137 0

[ "$failures" = 0 ] && echo "all passed"
exit $((failures > 0))
