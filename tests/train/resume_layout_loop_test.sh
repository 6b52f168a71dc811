#!/usr/bin/env bash
# Every pair of eight layouts of 1 to 8 ranks: saved by the one, resumed by the other, the same losses: a minute.
set -euo pipefail
export OMP_NUM_THREADS=1
"$PERIGEE_BIN/train_tests" --gtest_also_run_disabled_tests --gtest_filter=ResumeLayout.DISABLED_WholeMatrix
