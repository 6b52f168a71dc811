#!/usr/bin/env bash
# Runs bin/mpi_comm between real processes: its checks on 1 to 4 ranks, then the ways in which a job ends.
source "${PERIGEE_SOURCE:?}/tests/support/mpi.sh"
program=${PERIGEE_BIN:?}/mpi_comm

"$program" >"$scratch/log" 2>&1 || complain "alone"
for n in 1 2 3 4; do expect_all_pass "$n" "$program"; done

# how, exit code expected, messages expected. A killed rank leaves 128 + 9.
expect_end() {
    local how=$1 code=$2 messages=$3 token="--token=$$-$1" status=0 begin=$SECONDS
    ranks 3 "$program" "--fail=$how" "--code=$code" "$token" || status=$?
    [ "$status" = "$code" ] || complain "$how: mpirun returned $status, expected $code"
    [ "$(grep -c '^perigee: told to fail' "$scratch/log")" = "$messages" ] || complain "$how: messages"
    [ $((SECONDS - begin)) -le 60 ] || complain "$how: took $((SECONDS - begin)) s to end"
    for _ in $(seq 100); do
        pgrep -f -- "$token" >/dev/null || return 0
        sleep 0.1
    done
    complain "$how: processes left behind"
}
expect_end all 5 1
expect_end one 7 1
expect_end watchdog 6 1
expect_end kill 137 0
verdict
