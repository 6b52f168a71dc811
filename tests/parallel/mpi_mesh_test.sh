#!/usr/bin/env bash
# Runs bin/mpi_mesh between real processes, for job sizes with several ways to cut them.
source "${PERIGEE_SOURCE:?}/tests/support/mpi.sh"
for n in 1 4 6; do expect_all_pass "$n" "${PERIGEE_BIN:?}/mpi_mesh"; done
verdict
