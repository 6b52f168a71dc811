// Matrices of bf16 as E4M3 with a scale for each tile, and as their transposes, in one pass: as Ops::quantize defines
// it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bf16.h"

namespace perigee::kernels {

/// Bytes and scales of a quantised matrix as tensor/quantized.h lays them out; null where it is not wanted.
struct Quantized {
    uint8_t* bytes = nullptr;
    float* scales = nullptr;
};

struct Quantize {
    Quantized to;          ///< of x [rows, columns]
    Quantized transposed;  ///< of x^T [columns, rows]
    bf16 const* x;         ///< at a multiple of 16 bytes
    int64_t rows;          ///< a multiple of 128 where there is a transpose or tiles are squares
    int64_t columns;       ///< a multiple of 128
    bool squares;          ///< tiles
};
void quantize(Quantize const& args, cudaStream_t stream);

}  // namespace perigee::kernels
