// The projection of the newest tokens to queries, keys and values: rotated, and keys and values in their pages.
#pragma once

#include "kernels/decode/decode.h"
#include "kernels/gemv/gemv.h"

namespace perigee::decode {

struct Project {
    kernels::Gemv product;       ///< rows of W: H query heads, G key heads, G value heads
    Cache cache;                 ///< with lengths
    bf16* q = nullptr;           ///< [S, H, K]
    bf16 const* bias = nullptr;  ///< of the product, or null
    float const* cos = nullptr;  ///< [S, K / 2]
    float const* sin = nullptr;
    int32_t heads = 0;  ///< H
};
/// Writes q, and the newest keys and values as append() does. Means are left to attend().
void project(Project const& args, cudaStream_t stream);

}  // namespace perigee::decode
