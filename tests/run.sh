#!/usr/bin/env bash
# Sets up, builds and runs every test; where nvcc exists, also compiles the CUDA preset and runs the tests that need a
# GPU (they show as skipped without one).
set -euo pipefail
cd "$(dirname "$0")/.."
launch/setup.sh --developer

# build PRESET: quiet unless it fails.
build() {
    echo "building preset $1"
    mkdir -p build
    { cmake --preset "$1" && cmake --build --preset "$1"; } >"build/$1.log" 2>&1 || { tail -n 60 "build/$1.log"; exit 1; }
}

build cpu
ctest --preset cpu --parallel 2

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ -x "$nvcc" ]; then
    export CUDACXX=$nvcc
    build cuda
    ctest --preset cuda --label-regex gpu
fi
