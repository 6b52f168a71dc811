// Causal attention of every query over all keys of its document, in bf16 on Hopper GPUs. Documents of a pack may have
// any lengths. Nothing waits for the GPU or allocates; launches depend on the shape alone, so CUDA graphs can replay
// them.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>

#include "base/bf16.h"

namespace perigee {

/// Device pointers; tensors aligned to 16 bytes. Rows of q, o and lse are the tokens [query_begin, query_begin +
/// queries) of the pack.
struct DenseAttentionProblem {
    int64_t tokens = 0;  ///< T
    int64_t query_begin = 0, queries = 0;
    int64_t documents = 0;
    int64_t heads = 0;                      ///< H
    int64_t kv_heads = 0;                   ///< G, a divisor of H
    int64_t head_dim = 0;                   ///< K
    double scale = 0;                       ///< positive
    bool deterministic = false;             ///< the backward repeats bitwise, as the forward always does
    int64_t sums_bytes = int64_t{1} << 30;  ///< of the backward's fp32 dq in scratch memory, but one kv head's at least
    int32_t const* cu_seqlens = nullptr;    ///< [documents + 1], from 0 to T
    bf16 const* q = nullptr;                ///< [queries, H, K], after RoPE
    bf16 const* k = nullptr;                ///< [T, G, K]
    bf16 const* v = nullptr;
    void* scratch = nullptr;  ///< as many bytes as the pass needs, aligned to 256
    cudaStream_t stream = nullptr;
};

/// Whether this GPU and build have kernels for the head size: 64 and 128 on Hopper.
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

/// Bytes of scratch memory: of the forward, and of the backward, whose pointers may still be null.
size_t dense_attention_scratch(int64_t documents);
size_t dense_attention_backward_scratch(DenseAttentionProblem const& problem);

/// o [queries, H, K]; lse [queries, H], natural log-sum-exp of the scaled scores.
void dense_attention_forward(DenseAttentionProblem const& problem, bf16* o, float* lse);

void dense_attention_backward(DenseAttentionProblem const& problem, DenseAttentionGradients const& gradients);

}  // namespace perigee
