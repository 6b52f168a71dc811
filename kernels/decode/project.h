// QKV projection of the newest tokens, with RoPE. Keys and values are written to their cache pages.
#pragma once

#include "kernels/decode/decode.h"
#include "kernels/gemv/gemv.h"

namespace perigee::decode {

struct Project {
    kernels::Gemv product;       ///< rows of W: H query heads, G key heads, G value heads
    Cache cache;                 ///< lengths must be set
    bf16* q = nullptr;           ///< [S, H, K]
    bf16 const* bias = nullptr;  ///< one per row of W, or null
    float const* cos = nullptr;  ///< [S, K / 2]
    float const* sin = nullptr;
    int32_t heads = 0;  ///< H
};
/// Writes q, and the newest keys and values as append() does. Block means are left to attend().
void project(Project const& args, cudaStream_t stream);

}  // namespace perigee::decode
