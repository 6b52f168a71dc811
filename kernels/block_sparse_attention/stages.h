// The stages of block-sparse attention, launched one by one for tests and timing. They communicate through scratch
// memory.
#pragma once

#include "kernels/block_sparse_attention/block_sparse_attention.h"
#include "kernels/block_sparse_attention/block_table.h"

namespace perigee::block_sparse {

/// What the backward gathers with a row of q, in one sector of memory.
struct alignas(16) RowStats {
    float base;    ///< log2-sum-exp2 of the row's scores
    float delta;   ///< rowsum(do * o)
    float factor;  ///< scale of dq while KV tiles add to it
};

struct WorkItem;  // backward_sm90.cuh

/// Scratch memory, typed. The routing is CSR per kv head: block -> entries (row << 6 | slot), row = query * R + r over
/// the group's R heads, ascending.
struct Scratch : BlockTable {
    // BlockSparsePlan::routing, with the block table
    int32_t* chunk_starts;  ///< [G, chunks + 1, blocks]: entries of a block before a chunk; at last, all
    unsigned* arrived;      ///< [G]: thread blocks that have finished their scan
    int32_t* offsets;       ///< [G, blocks + 1]: of each block's entries in the head's part of `indices`
    uint32_t* indices;      ///< [G, queries * R * S]

    int32_t* tiles;      ///< [pass_kv_heads, blocks + 1]: tiles before each block's first in a pass
    bf16* partial;       ///< [pass_kv_heads, pass_queries, R, row_slots, K]
    float* partial_lse;  ///< [pass_kv_heads, pass_queries, R, S]
    RowStats* rows;      ///< [queries, H]
    uint32_t* max_abs;   ///< [2]: bits of the largest bf16 of k and v

    // The sm90 backward
    WorkItem* items;
    int32_t* item_begin;   ///< [pass_kv_heads, blocks + 1], counted from each head's first
    int32_t* split_begin;  ///< the same, of splits that leave sums
    int32_t* counters;     ///< items of the pass, and how many of them are taken
    float4* sums;          ///< [carried_tiles + splits, 2, K / 8, kConsumers]: dK, dV of earlier passes, of splits
};
/// `routing` null: it is in `memory` too.
Scratch scratch_of(BlockSparsePlan const& plan, void* memory, void* routing);

struct Stage {
    BlockSparsePlan plan;
    BlockSparseProblem problem;
    Scratch scratch;
};
Stage make_stage(BlockSparsePlan const& plan, BlockSparseProblem const& problem);

/// kv heads [head, head + heads) and query chunks [chunk, chunk + chunks), whose partials are in memory together.
struct Pass {
    int64_t head = 0;
    int64_t heads = 0;
    int64_t chunk = 0;
    int64_t chunks = 0;
};
Pass pass_of(BlockSparsePlan const& plan, int64_t index);

void build_block_table(Stage const& stage);
void build_routing(Stage const& stage);                      ///< chosen -> chunk_starts, offsets, indices
void count_tiles(Stage const& stage, Pass const& pass);      ///< tiles
void attend_selected(Stage const& stage, Pass const& pass);  ///< partial, partial_lse
/// The local block, merged with the partials: final o and lse of the pass.
void attend_local(Stage const& stage, Pass const& pass, bf16* o, float* lse);

void attend_selected_sm90(Stage const& stage, Pass const& pass);  ///< head sizes 64 and 128
void attend_local_sm90(Stage const& stage, Pass const& pass, bf16* o, float* lse);

/// rows; with adds_to_dq also max_abs, and dq = 0
void preprocess_backward(Stage const& stage, BlockSparseGradients const& gradients);

void dkv_sm80(Stage const& stage, BlockSparseGradients const& gradients);                            ///< dk and dv
void dq_selected_sm80(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients);  ///< partial
/// The local block plus the partials: final dq of the pass.
void dq_local_sm80(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients);

void schedule_work_items(Stage const& stage, Pass const& pass);  ///< items
/// dQ partials, or sums in dq; dk and dv, or those of splits
void attend_backward_sm90(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients);
/// Final dq of the pass; dk and dv of KV tiles that were split or carried.
void reduce_gradients_sm90(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients);

}  // namespace perigee::block_sparse
