#!/usr/bin/env bash
# Sets up, builds and runs every test but the long ones (`ctest --preset cpu -L long`). With nvcc it builds the preset
# `cuda`, which holds all CPU tests too; tests that need a GPU show as skipped without one. Without nvcc it builds `cpu`.
set -euo pipefail
cd "$(dirname "$0")/.."
launch/setup.sh --developer

preset=cpu
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ -x "$nvcc" ]; then
    preset=cuda
    export CUDACXX=$nvcc
    launch/setup_cuda.sh || echo "tests: building without cuDNN"
fi
# The other architectures of a default build compile the same code once more.
cmake --preset $preset -DPERIGEE_TESTS=ON -DCMAKE_CUDA_ARCHITECTURES="${PERIGEE_ARCHITECTURES:-80-real;90a-real}" >/dev/null
cmake --build --preset $preset -- --quiet
ctest --preset $preset --parallel 2 --label-exclude long
