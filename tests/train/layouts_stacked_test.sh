#!/usr/bin/env bash
# Runs bin/stacked_layouts: every layout of 2 and 4 ranks and four of 8, on one GPU.
source "${PERIGEE_SOURCE:?}/tests/support/stacked.sh"
export OMP_NUM_THREADS=8
ranks 8 "${PERIGEE_BIN:?}/stacked_layouts" || complain "some layout"
cat "$scratch/printed"
expect_memory_back
verdict
