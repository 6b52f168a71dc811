// Forward and backward of the key convolution before RoPE, as Ops::key_conv_forward and Ops::key_conv_backward define
// them. Sums are fp32 and bitwise reproducible. C must be even.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/bf16.h"

namespace perigee::kernels {

/// T tokens of C channels, W taps. Rows of the fused projection are `width` elements apart; keys start at column
/// `first`.
struct KeyConvShape {
    int64_t tokens;
    int channels;
    int taps;  ///< 1 to 5
    int64_t width;
    int64_t first;
};

struct KeyConvForward {
    KeyConvShape shape;
    bf16* y;                   ///< [T, width]
    bf16 const* x;             ///< [T, C]
    bf16 const* w;             ///< [C, W]
    int32_t const* positions;  ///< [T]
};
void key_conv_forward(KeyConvForward const& args, cudaStream_t stream);

struct KeyConvBackward {
    KeyConvShape shape;
    bf16* dx;                  ///< [T, width]
    bf16 const* dy;            ///< [T, C]
    bf16 const* x;             ///< [T, C]
    bf16 const* w;             ///< [C, W]
    int32_t const* positions;  ///< [T]
    float* dw_accumulated;     ///< [C, W]
    float* scratch;            ///< key_conv_backward_scratch() bytes
};
size_t key_conv_backward_scratch(KeyConvShape const& shape);
void key_conv_backward(KeyConvBackward const& args, cudaStream_t stream);

}  // namespace perigee::kernels
