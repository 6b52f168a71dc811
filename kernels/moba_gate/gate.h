// MoBA's gate on NVIDIA GPUs: for every query and head the top k - 1 past blocks by query-centroid dot product.
// Nothing waits for the GPU or allocates; results repeat bitwise. Rules: README.md.
#pragma once

#include <driver_types.h>

#include "base/bf16.h"
#include "kernels/block_sparse_attention/block_table.h"
#include "kernels/moba_gate/plan.h"

namespace perigee {

/// Device pointers, tensors aligned to 16 bytes. Rows of q are the tokens [query_begin, query_begin + queries).
struct MobaGateProblem {
    int64_t query_begin = 0;
    int32_t const* cu_seqlens = nullptr;  ///< [documents + 1], from 0 to tokens
    bf16 const* q = nullptr;              ///< [queries, H, K], after RoPE
    bf16 const* k = nullptr;              ///< [T, G, K]
    void* scratch = nullptr;              ///< plan.scratch_bytes, aligned to 256 bytes
    cudaStream_t stream = nullptr;
};

/// Writes all of chosen [queries, H, S]: block indices inside the document, ascending, then -1.
void moba_gate_select(MobaGatePlan const& plan, MobaGateProblem const& problem, int32_t* chosen);

namespace moba_gate {

struct Stage {
    MobaGatePlan plan;
    MobaGateProblem problem;
    struct {
        block_sparse::BlockTable table;
        bf16* centroids;  ///< [blocks, G, K]
    } scratch;
};
Stage make_stage(MobaGatePlan const& plan, MobaGateProblem const& problem);

/// What kernels are given.
struct GateArgs {
    bf16 const *q, *k;
    bf16* centroids;
    int32_t* chosen;
    block_sparse::Block const* blocks;
    int32_t const* block_of;
    int32_t block_size, queries, query_begin, heads, kv_heads, group;
    int32_t slots;   ///< slots that blocks compete for
    int32_t first;   ///< 1: block 0 has its own slot and does not compete; else 0
    int32_t summed;  ///< heads that share a selection
    bool force_previous;
    __host__ __device__ int32_t all_slots() const { return first + slots; }
};
GateArgs gate_args(Stage const& stage, int32_t* chosen = nullptr);

void build_block_table(Stage const& stage);
void pool_centroids(Stage const& stage);                  ///< centroids; zeros for incomplete blocks
void select_blocks(Stage const& stage, int32_t* chosen);  ///< from centroids
void select_blocks_sm80(Stage const& stage, int32_t* chosen);
void select_blocks_sm90(Stage const& stage, int32_t* chosen);

}  // namespace moba_gate
}  // namespace perigee
