// The stages MoBA on the GPU is made of, each launched on its own so that it can be tested and timed apart. They
// communicate through scratch memory; Scratch gives its parts their types.
#pragma once

#include "kernels/moba/cuda/moba_cuda.h"

namespace perigee::moba {

/// A block of a document: tokens [begin, end); `first` is the document's first block. Blocks beyond the last have none.
struct alignas(16) Block {
    int32_t begin;
    int32_t end;
    int32_t first;
    int32_t document;
};

/// What the backward knows of a row of q beforehand, gathered with it: in one sector of memory.
struct alignas(16) RowNumbers {
    float base;    ///< of its exponents, base_of_weights
    float delta;   ///< rowsum(do * o)
    float factor;  ///< of dq, while visits add to it
};

/// The scratch memory of a plan. Lists are per (key/value head, block): entry = row << 6 | slot with row = query * R +
/// r counted in the group's R heads, in ascending order.
struct Scratch {
    // In the plan's `lists`, which may be in memory of their own
    int32_t* first;       ///< [documents + 1]: first block of each document; the last is the number of blocks
    Block* blocks;        ///< [blocks]
    int32_t* block_of;    ///< [T]: of each token
    int32_t* places;      ///< [G, blocks, chunks]: entries of a list up to and with a chunk, once lists are built
    int32_t* starts;      ///< [G, chunks, blocks]: entries of a list before a chunk, once lists are built
    int32_t* totals;      ///< [G, blocks]
    unsigned* arrived;    ///< [G]: thread blocks whose sums are done
    int32_t* list_begin;  ///< [G, blocks + 1]: in the part of `list` of that head
    uint32_t* list;       ///< [G, queries * R * S]

    bf16* centroids;     ///< [blocks, G, K]
    int32_t* tiles;      ///< [wave_kv_heads, blocks + 1]: tiles of rows before each block's first, in a wave
    bf16* partial;       ///< [wave_kv_heads, wave_queries, R, row_slots, K]
    float* partial_lse;  ///< [wave_kv_heads, wave_queries, R, S]
    RowNumbers* rows;    ///< [queries, H]
    uint32_t* largest;   ///< [2]: bits of the largest bf16 of k and v
    void *items, *pieces, *carried;  ///< of the fused backward: cuda/fused.cuh
    int32_t *item_begin, *piece_begin, *counters;
};
/// `lists` null: they are in `memory` too.
Scratch scratch_of(MobaPlan const& plan, void* memory, void* lists);

/// What every stage is given. `unsigned` kernels arguments stay small: it is passed by value.
struct Stage {
    MobaPlan plan;
    MobaProblem problem;
    Scratch scratch;
};
Stage make_stage(MobaProblem const& problem, MobaTask task);

/// Partial results of the key/value heads [head, head + heads) and the query chunks [chunk, chunk + chunks) are in
/// memory at a time.
struct Wave {
    int64_t head = 0;
    int64_t heads = 0;
    int64_t chunk = 0;
    int64_t chunks = 0;
};
Wave wave_of(MobaPlan const& plan, int64_t index);

void build_block_table(Stage const& stage);                ///< first, blocks, block_of
void pool_keys(Stage const& stage);                        ///< centroids; zeros for incomplete blocks
void choose_blocks(Stage const& stage, int32_t* chosen);   ///< from centroids
void build_lists(Stage const& stage);                      ///< from problem.chosen: places, list_begin, list
void plan_tiles(Stage const& stage, Wave const& wave);     ///< tiles
void attend_chosen(Stage const& stage, Wave const& wave);  ///< partial, partial_lse
/// The own block, merged with the partial results: final o and lse of the wave.
void attend_own(Stage const& stage, Wave const& wave, bf16* o, float* lse);

/// rows; where visits add to dq, zeros there, and largest
void row_products(Stage const& stage, MobaGradients const& gradients);
void key_gradients(Stage const& stage, MobaGradients const& gradients);                             ///< dk and dv
void query_gradients_chosen(Stage const& stage, Wave const& wave, MobaGradients const& gradients);  ///< partial
/// Of the own block, plus the partial gradients: final dq of the wave.
void query_gradients_own(Stage const& stage, Wave const& wave, MobaGradients const& gradients);

// The backward on Hopper, after row_products.
void plan_items(Stage const& stage, Wave const& wave);  ///< items
/// partial, or sums in dq; dk and dv
void fused_gradients(Stage const& stage, Wave const& wave, MobaGradients const& gradients);
/// Final dq of the wave, and dk and dv of the keys that several items shared.
void sum_gradients(Stage const& stage, Wave const& wave, MobaGradients const& gradients);

}  // namespace perigee::moba
