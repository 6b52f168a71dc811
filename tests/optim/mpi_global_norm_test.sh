#!/usr/bin/env bash
# Runs bin/mpi_global_norm between real processes.
source "${PERIGEE_SOURCE:?}/tests/support/mpi.sh"
for n in 1 3 4; do expect_all_pass "$n" "${PERIGEE_BIN:?}/mpi_global_norm"; done
verdict
