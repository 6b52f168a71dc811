#!/usr/bin/env bash
# Sets up, builds and runs every test but the long ones (`ctest --preset cpu -L long`); where nvcc exists, also compiles
# the CUDA preset and runs the tests that need a GPU (they show as skipped without one).
set -euo pipefail
cd "$(dirname "$0")/.."
launch/setup.sh --developer

build() {
    cmake --preset "$1" -DPERIGEE_TESTS=ON >/dev/null
    cmake --build --preset "$1" -- --quiet
}

build cpu
ctest --preset cpu --parallel 2 --label-exclude long

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ -x "$nvcc" ]; then
    export CUDACXX=$nvcc
    launch/setup_cuda.sh || echo "tests: building without cuDNN"
    build cuda
    ctest --preset cuda --label-regex gpu
fi
