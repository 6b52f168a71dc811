// Quantises bf16 matrices to E4M3 with one scale per tile, and their transposes, in one pass, as Ops::quantize defines
// it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bf16.h"
#include "base/fp8.h"

namespace perigee::kernels {

/// Bytes and scales of a quantised matrix, in the layout of tensor/quantized.h. Null: not wanted.
struct Quantized {
    uint8_t* bytes = nullptr;
    float* scales = nullptr;
};

struct Quantize {
    Quantized to;          ///< of x [rows, columns]
    Quantized transposed;  ///< of x^T [columns, rows]
    bf16 const* x;         ///< at a multiple of 16 bytes
    int64_t rows;          ///< a multiple of 128 with `transposed` or `squares`
    int64_t columns;       ///< a multiple of 128
    bool squares;          ///< 128 x 128 tiles instead of 1 x 128
};
void quantize(Quantize const& args, cudaStream_t stream);

/// Adds a quantised matrix of `size` elements, a multiple of 128, to counts [kQuantCounts].
void count_quantized(double* counts, uint8_t const* bytes, bf16 const* x, int64_t size, cudaStream_t stream);

}  // namespace perigee::kernels
