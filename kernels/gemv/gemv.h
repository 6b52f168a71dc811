// Products of a few rows with a weight matrix, as in decoding: bound by the bytes of the weights. The operations before
// and after a product in a transformer block are fused into it.
#pragma once

#include <driver_types.h>

#include <cstdint>

#include "base/bf16.h"

namespace perigee::kernels {

/// x W^T in fp32. Device pointers, aligned to 16 bytes.
struct Gemv {
    bf16 const* x = nullptr;     ///< [rows, k]
    bf16 const* w = nullptr;     ///< [n, k]
    bf16 const* norm = nullptr;  ///< [k]: if set, rows of x are first normalised (RMSNorm) and rounded to bf16
    float eps = 0;               ///< of the norm
    int64_t rows = 0;            ///< 1 to 16
    int64_t n = 0;
    int64_t k = 0;  ///< a multiple of 32
};

/// Whether the functions below support these arguments.
bool takes_gemv(Gemv const& args);

// A row's bits depend only on that row and W. Results are bitwise reproducible. y and x must not overlap.
/// y [rows, n] = product rounded to bf16, or y += product.
void gemv(Gemv const& args, bf16* y, bool accumulate, cudaStream_t stream);
/// y [rows, n / 2] = SwiGLU of the rounded product. Its first n / 2 columns are the gates. n is a multiple of 8.
void gemv_swiglu(Gemv const& args, bf16* y, cudaStream_t stream);

}  // namespace perigee::kernels
