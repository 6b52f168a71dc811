// Causal attention of every query over all keys of its document, in bf16 on Hopper GPUs. Documents of a pack may have
// any lengths. Nothing waits for the GPU or allocates; launches depend on the shape alone, so CUDA graphs can replay
// them.
#pragma once

#include <driver_types.h>

#include <cstdint>

#include "base/bf16.h"
#include "kernels/dense_attention/plan.h"

namespace perigee {

/// Device pointers; tensors aligned to 16 bytes. Rows of q, o and lse are the tokens [query_begin, query_begin +
/// queries) of the pack.
struct DenseAttentionProblem {
    DenseAttentionShape shape;
    int64_t query_begin = 0, queries = 0;
    double scale = 0;                     ///< positive
    int32_t const* cu_seqlens = nullptr;  ///< [documents + 1], from 0 to T
    bf16 const* q = nullptr;              ///< [queries, H, K], after RoPE
    bf16 const* k = nullptr;              ///< [T, G, K]
    bf16 const* v = nullptr;
    void* scratch = nullptr;  ///< as many bytes as the pass needs, aligned to 256
    cudaStream_t stream = nullptr;
};

/// Whether this GPU and build have kernels for the head size: 64, 96 and 128 on Hopper.
bool has_dense_attention(int64_t head_dim);

/// Of all tokens of the pack: query_begin is 0, queries is T.
struct DenseAttentionGradients {
    bf16 const* d_o = nullptr;  ///< [T, H, K]
    bf16 const* o = nullptr;    ///< of the forward
    float const* lse = nullptr;
    bf16* dq = nullptr;
    bf16* dk = nullptr;  ///< [T, G, K]
    bf16* dv = nullptr;
};

/// o [queries, H, K]; lse [queries, H], natural log-sum-exp of the scaled scores.
void dense_attention_forward(DenseAttentionProblem const& problem, bf16* o, float* lse);

void dense_attention_backward(DenseAttentionProblem const& problem, DenseAttentionGradients const& gradients);

}  // namespace perigee
