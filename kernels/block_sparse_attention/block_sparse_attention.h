// Attention of every query over its local block and selected past blocks, forward and backward, in bf16 on NVIDIA GPUs.
// Any selection serves: it is an array of block indices. Nothing waits for the GPU or allocates. Launches depend on the
// plan alone, so CUDA graphs can replay them. Results repeat bitwise, but for a backward that is not deterministic.
#pragma once

#include <driver_types.h>

#include "base/bf16.h"
#include "kernels/block_sparse_attention/plan.h"

namespace perigee {

/// Device pointers, tensors aligned to 16 bytes. Rows of q, o, lse and chosen are the tokens [query_begin, query_begin
/// + queries) of the pack.
struct BlockSparseProblem {
    int64_t query_begin = 0;
    int32_t const* cu_seqlens = nullptr;  ///< [documents + 1], from 0 to tokens
    double scale = 0;                     ///< positive
    bf16 const* q = nullptr;              ///< [queries, H, K], after RoPE
    bf16 const* k = nullptr;              ///< [T, G, K]
    bf16 const* v = nullptr;
    /// The selection [queries, H, S]: block indices inside the document, strictly ascending, then -1. Blocks that are
    /// not in a query's past are ignored.
    int32_t const* chosen = nullptr;
    /// routing_bytes(shape), aligned to 256 bytes: the forward writes block table and routing there, the backward of
    /// the same problem reads them. Null: both are in scratch memory and the backward builds its own.
    void* routing = nullptr;
    void* scratch = nullptr;  ///< plan.bytes_beside(routing != nullptr), aligned to 256 bytes
    cudaStream_t stream = nullptr;
};

struct BlockSparseGradients {
    bf16 const* d_o = nullptr;  ///< [queries, H, K]
    bf16 const* o = nullptr;    ///< of the forward
    float const* lse = nullptr;
    bf16* dq = nullptr;
    bf16* dk = nullptr;  ///< [T, G, K], contributions of these queries
    bf16* dv = nullptr;
    bool add_to_dkv = false;  ///< += instead of =
};

/// BlockSparseShape::arch for the current GPU and this build.
KernelArch kernel_arch();

/// o [queries, H, K]; lse [queries, H], natural log-sum-exp of the scaled scores. `plan` is one for the forward.
void block_sparse_forward(BlockSparsePlan const& plan, BlockSparseProblem const& problem, bf16* o, float* lse);

/// `plan` is one for the backward.
void block_sparse_backward(BlockSparsePlan const& plan, BlockSparseProblem const& problem,
                           BlockSparseGradients const& gradients);

}  // namespace perigee
