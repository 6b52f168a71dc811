// Products of a few rows with a matrix of weights, as decoding makes them: bound by the bytes of the weights.
#pragma once

#include <driver_types.h>

#include <cstdint>

#include "base/bf16.h"

namespace perigee::kernels {

/// y [rows, n] = x [rows, k] W^T in fp32, rounded. Device pointers, aligned to 16 bytes; x and y do not overlap.
struct Gemv {
    bf16* y = nullptr;
    bf16 const* x = nullptr;
    bf16 const* w = nullptr;  ///< [n, k]
    int64_t rows = 0;         ///< 1 to 8
    int64_t n = 0;
    int64_t k = 0;  ///< a multiple of 32
};

/// Whether gemv() takes these.
bool takes_gemv(Gemv const& args);

/// A row's bits depend on that row and W alone. Results repeat bitwise.
void gemv(Gemv const& args, cudaStream_t stream);

}  // namespace perigee::kernels
