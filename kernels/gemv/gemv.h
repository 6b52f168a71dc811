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

/// What follows attention in a transformer block: x += o W_o^T, y = SwiGLU of norm(x) W^T, x += y W_down^T. The bits
/// are those of the functions above.
struct BlockTail {
    bf16 const* o = nullptr;          ///< [rows, width]
    bf16 const* w_o = nullptr;        ///< [hidden, width]
    bf16 const* norm = nullptr;       ///< [hidden]
    bf16 const* w_gate_up = nullptr;  ///< [2 intermediate, hidden]: the gates first
    bf16 const* w_down = nullptr;     ///< [hidden, intermediate]
    bf16* x = nullptr;                ///< [rows, hidden]
    bf16* y = nullptr;                ///< [rows, intermediate]
    unsigned* arrived = nullptr;      ///< zero before and after
    float eps = 0;
    int64_t rows = 0;  ///< 1 to 16
    int64_t width = 0, hidden = 0, intermediate = 0;
};
/// Whether block_tail() supports these arguments: widths in multiples of 512, and rows that fit into shared memory.
bool takes_block_tail(BlockTail const& args);
void block_tail(BlockTail const& args, cudaStream_t stream);

}  // namespace perigee::kernels
