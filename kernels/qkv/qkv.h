// From the fused projection [T, (H + 2G) K] to rotated q and k and plain v, and back: bias, per-head RMSNorm (Qwen3)
// and RoPE in Hugging Face's half-split layout in one pass, as Ops::qkv_forward and Ops::qkv_backward define them.
// Null pointers switch parts off. Even head sizes up to qkv_widest_head().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/bf16.h"
#include "kernels/limits.h"

namespace perigee::kernels {

/// T tokens; H query heads and G key/value heads of K values. X = (H + 2G) K.
struct QkvShape {
    int64_t tokens;
    int heads;
    int kv_heads;
    int size;
};

struct QkvForward {
    QkvShape shape;
    bf16* q;             ///< [T, H, K]
    bf16* k;             ///< [T, G, K]
    bf16* v;             ///< [T, G, K]
    bf16* qkv;           ///< [T, X]; receives the sum with the bias, where there is one
    float const* cos;    ///< [T, K / 2]
    float const* sin;    ///< [T, K / 2]
    bf16 const* bias;    ///< [X] or null
    bf16 const* q_norm;  ///< [K] or null
    bf16 const* k_norm;  ///< [K] or null
    float eps;
};
void qkv_forward(QkvForward const& args, cudaStream_t stream);

struct QkvBackward {
    QkvShape shape;
    bf16* dqkv;                  ///< [T, X]; may be the memory of qkv
    bf16 const* dq;              ///< [T, H, K]
    bf16 const* dk;              ///< [T, G, K]
    bf16 const* dv;              ///< [T, G, K]
    bf16 const* qkv;             ///< [T, X] after the bias; read where there is a norm
    float const* cos;            ///< [T, K / 2]
    float const* sin;            ///< [T, K / 2]
    bf16 const* q_norm;          ///< [K] or null
    bf16 const* k_norm;          ///< [K] or null
    float* dbias_accumulated;    ///< [X] or null
    float* dq_norm_accumulated;  ///< [K], with q_norm
    float* dk_norm_accumulated;  ///< [K], with k_norm
    float eps;
    float* scratch;  ///< qkv_backward_scratch() bytes
};
size_t qkv_backward_scratch(QkvShape const& shape, bool bias, bool norms);
void qkv_backward(QkvBackward const& args, cudaStream_t stream);

}  // namespace perigee::kernels
