#!/usr/bin/env bash
# Every layout of 1, 2, 4 and 8 ranks, context mode, accumulation, ZeRO on and off, for every kind of model: minutes.
set -euo pipefail
export OMP_NUM_THREADS=1
"$PERIGEE_BIN/parallel_tests" --gtest_also_run_disabled_tests --gtest_filter=Layout.DISABLED_WholeMatrix
