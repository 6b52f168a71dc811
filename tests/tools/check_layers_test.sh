#!/usr/bin/env bash
# tools/check_layers.sh accepts this repository and finds every kind of forbidden edge planted in a small tree.
set -euo pipefail
check="${PERIGEE_SOURCE:?}/tools/check_layers.sh"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0
mkdir -p "$tree"/{cmake,src/base,src/io,src/train,src/data,src/device/cuda,kernels/moba_gate}
cp "$PERIGEE_SOURCE/cmake/Layers.cmake" "$tree/cmake/"

# FILE LINE ok|bad
expect() {
    local file=$1 line=$2 want=$3 have=ok
    echo "$line" >"$tree/$file"
    "$check" "$tree" >"$tree/out" 2>&1 || have=bad
    if [ "$have" != "$want" ] || { [ "$want" = bad ] && ! grep -q "^$file:1: " "$tree/out"; }; then
        echo "FAILED: $file with '$line' should be $want"
        cat "$tree/out"
        failures=1
    fi
    rm "$tree/$file"
}
"$check" || failures=1
echo '#include "base/error.h"' >"$tree/src/base/error.cc"
expect src/train/a.cc '#include "data/options.h"' ok
expect src/data/a.cc '#include "data/b.h"' ok
expect src/base/a.h '#include "io/file_system.h"' bad         # up
expect src/data/a.cc '#include "optim/optimizer.h"' bad       # sideways
expect src/data/a.h '  #  include "train/options.h"' bad      # spaces
expect kernels/moba_gate/a.cu '#include "ops/ops.h"' bad           # from the kernels
expect kernels/moba_gate/a.cu '#include <cuda_runtime.h>' ok
expect src/data/a.cc '#include "b.h"' bad                     # not from a layer's root
expect src/io/a.cc '#include <hdf5.h>' ok
expect src/data/a.cc '#include <hdf5.h>' bad
expect src/train/a.cc '#include <mpi.h>' bad
expect src/train/a.cc '#include <yaml-cpp/yaml.h>' bad
expect src/train/a.cc '#include <cblas.h>' bad
expect src/device/a.cc '#include <cuda_runtime_api.h>' bad
expect src/device/cuda/a.cc '#include <cuda_runtime_api.h>' ok
expect src/io/a.h '#include <nlohmann/json.hpp>' bad
expect src/io/a.cc '#include <nlohmann/json.hpp>' ok
[ "$failures" = 0 ] && echo "all passed"
exit $failures
