#!/usr/bin/env bash
# Runs bin/collectives on the CPU, between 1 to 4 real processes.
source "${PERIGEE_SOURCE:?}/tests/support/mpi.sh"
program=${PERIGEE_BIN:?}/collectives

"$program" >"$scratch/log" 2>&1 || complain "alone"
for n in 2 3 4; do expect_all_pass "$n" "$program"; done
verdict
