// RMSNorm (Zhang & Sennrich 2019) with the addition to the residual stream fused in, forward and backward, as
// Ops::rmsnorm_forward and Ops::rmsnorm_backward define them. Rows stay in registers: every tensor is read once and
// written once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/bf16.h"
#include "kernels/limits.h"

namespace perigee::kernels {

struct RmsNormForward {
    bf16* y;               ///< [T, D]
    float* rstd;           ///< [T]
    bf16 const* x;         ///< [T, D]
    bf16 const* w;         ///< [D]
    bf16 const* residual;  ///< [T, D] or null
    bf16* sum;             ///< [T, D], with a residual: x + residual, rounded; what is normalised
    int64_t tokens;
    int64_t width;
    float eps;
};
void rmsnorm_forward(RmsNormForward const& args, cudaStream_t stream);

struct RmsNormBackward {
    bf16* dx;               ///< [T, D]; may be the memory of dresidual, dy or x
    float* dw_accumulated;  ///< [D]
    bf16 const* dy;         ///< [T, D]
    bf16 const* x;          ///< [T, D]
    bf16 const* w;          ///< [D]
    float const* rstd;      ///< [T]
    bf16 const* dresidual;  ///< [T, D] or null
    int64_t tokens;
    int64_t width;
    float* scratch;  ///< rmsnorm_backward_scratch() bytes
};
size_t rmsnorm_backward_scratch(int64_t tokens, int64_t width);
void rmsnorm_backward(RmsNormBackward const& args, cudaStream_t stream);

}  // namespace perigee::kernels
