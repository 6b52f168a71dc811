// Query tiles: which rows of q meet which keys, routed rows of a block or its local rows.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/block_sparse_attention/stages.h"
#include "kernels/common/fragments.cuh"

namespace perigee::block_sparse {

using namespace kernels;

inline constexpr int kAttentionThreads = 128;  ///< four warps

/// What attention kernels are given. A row is (query, head) of [queries, H].
struct AttentionArgs : Scratch, BlockSparseGradients {
    bf16 const* q;
    bf16 const* k;
    bf16 const* v;
    int32_t const* chosen;
    bf16* o_out;     ///< of the forward
    float* lse_out;  ///
    int64_t indices_stride;
    float scale;
    int32_t heads, kv_heads, group, slots, capacity, chunks;
    int32_t query_begin, queries;
    int32_t head, chunk, end_chunk;  ///< of the pass
    int32_t pass_begin, pass_end;    ///< its queries
    int32_t pass_rows;               ///< rows of one key/value head that `partial` has room for
    int32_t tiles_per_block;         ///< tiles of rows, or of keys, that a whole block has
    bool adds_to_dq;                 ///< dq is zero before, and has no partial results
};
AttentionArgs attention_args(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients = {});
/// No fewer tiles of routed rows than a key/value head has in a pass.
int64_t max_routed_tiles(BlockSparsePlan const& plan, Pass const& pass);
/// Tiles of `tile` that a whole block has, at `per_token` rows a token.
int32_t tiles_per_block(BlockSparsePlan const& plan, int64_t per_token, int64_t tile);

/// A query tile: rows [begin, end) of a block's entries, or of a block in order of tokens, then heads.
struct Work {
    int32_t head;   ///< in the pass
    int64_t g;      ///< key/value head
    int32_t index;  ///< of the block
    Block block;
    int32_t begin;
    int32_t end;
    int32_t key_end;  ///< keys at or after it concern no row
};

/// Where a row is; -1 for none.
struct Row {
    int32_t at = -1;          ///< query * H + head
    int32_t slot = -1;        ///< in `partial`: of this partial; for local rows the row's first slot
    int32_t limit = INT_MAX;  ///< the last token it sees; rows that are not there may see anything
};

/// The `tile`-th tile of kRows routed rows of a head of the pass; `block` is the last block whose tiles begin at or
/// before it. `indices_end`: end of the block's entries in this pass.
template <int kRows>
__device__ Work routed_work(AttentionArgs const& a, int32_t head, int32_t block, int32_t tile, int32_t& indices_end) {
    Work work;
    work.head = head;
    work.g = a.head + head;
    work.index = block;
    work.block = a.blocks[block];
    work.key_end = work.block.end;
    int32_t const* const ends = a.chunk_ends + (work.g * a.capacity + block) * a.chunks;
    int32_t const indices = a.offsets[work.g * (a.capacity + 1) + block];
    int32_t const first = a.tiles[int64_t{head} * (a.capacity + 1) + block];
    work.begin = indices + (a.chunk > 0 ? ends[a.chunk - 1] : 0) + (tile - first) * kRows;
    indices_end = indices + ends[a.end_chunk - 1];
    work.end = min(indices_end, work.begin + kRows);
    return work;
}

/// The blockIdx.x-th tile of kRows routed rows of the pass; false beyond the last.
template <int kRows>
__device__ bool find_routed(AttentionArgs const& a, Work& work) {
    int32_t const* const tiles = a.tiles + int64_t{blockIdx.y} * (a.capacity + 1);
    auto const tile = static_cast<int32_t>(blockIdx.x);
    if (tile >= tiles[a.capacity]) return false;
    int32_t low = 0, high = a.capacity;  // the last block whose tiles begin at or before this one
    while (high - low > 1) {
        int32_t const middle = (low + high) / 2;
        if (tiles[middle] <= tile)
            low = middle;
        else
            high = middle;
    }
    int32_t indices_end;
    work = routed_work<kRows>(a, static_cast<int32_t>(blockIdx.y), low, tile, indices_end);
    return true;
}

inline constexpr uint32_t kNoEntry = ~0u;

/// The i-th row's routing entry, or kNoEntry.
__device__ __forceinline__ uint32_t routed_entry(AttentionArgs const& a, Work const& work, int i) {
    return work.begin + i < work.end ? a.indices[work.g * a.indices_stride + work.begin + i] : kNoEntry;
}
__device__ __forceinline__ Row row_of_entry(AttentionArgs const& a, Work const& work, uint32_t entry) {
    Row row;
    if (entry != kNoEntry) {
        auto const at = static_cast<int32_t>(entry >> 6);
        row.at = at / a.group * a.heads + static_cast<int32_t>(work.g) * a.group + at % a.group;
        row.slot = (work.head * a.pass_rows + at - a.pass_begin * a.group) * a.slots + static_cast<int32_t>(entry & 63);
        row.limit = work.block.end - 1;
    }
    return row;
}
__device__ __forceinline__ Row routed_row(AttentionArgs const& a, Work const& work, int i) {
    return row_of_entry(a, work, routed_entry(a, work, i));
}

/// The x-th tile of kRows rows of a block's local tokens; false where it has no row in the pass. Late tiles, which see
/// more keys, come first.
template <int kRows>
__device__ bool local_work(AttentionArgs const& a, int32_t head, int32_t x, Work& work) {
    work.index = x / a.tiles_per_block;
    work.block = a.blocks[work.index];
    work.head = head;
    work.g = a.head + head;
    work.begin = (a.tiles_per_block - 1 - x % a.tiles_per_block) * kRows;
    int32_t const pass_end = a.query_begin + a.pass_end;  // as tokens
    int32_t const first = work.block.begin + work.begin / a.group;
    int32_t const last = work.block.begin + (work.begin + kRows - 1) / a.group;
    work.end = work.begin + kRows;
    work.key_end = min(min(last + 1, work.block.end), pass_end);
    return first < min(work.block.end, pass_end) && last >= a.query_begin + a.pass_begin;
}

/// Where in `partial` the slots of the i-th row begin, were it in the pass. Rows of a tile follow each other there.
__device__ __forceinline__ int32_t local_slot(AttentionArgs const& a, Work const& work, int i) {
    int32_t const row = (work.block.begin - a.query_begin - a.pass_begin) * a.group + work.begin + i;
    return (work.head * a.pass_rows + row) * a.slots;
}

__device__ __forceinline__ Row local_row(AttentionArgs const& a, Work const& work, int i) {
    Row row;
    int32_t const token = work.block.begin + (work.begin + i) / a.group, r = (work.begin + i) % a.group;
    int32_t const query = token - a.query_begin;
    if (token < work.block.end && query >= a.pass_begin && query < a.pass_end) {
        row.at = query * a.heads + static_cast<int32_t>(work.g) * a.group + r;
        row.slot = local_slot(a, work, i);
        row.limit = token;
    }
    return row;
}

template <bool kLocal, int kRows>
__device__ __forceinline__ bool find_work(AttentionArgs const& a, Work& work) {
    if constexpr (kLocal)
        return local_work<kRows>(a, static_cast<int32_t>(blockIdx.y), static_cast<int32_t>(blockIdx.x), work);
    else
        return find_routed<kRows>(a, work);
}
template <bool kLocal>
__device__ __forceinline__ Row row_of(AttentionArgs const& a, Work const& work, int i) {
    if constexpr (kLocal)
        return local_row(a, work, i);
    else
        return routed_row(a, work, i);
}

/// Whether slot `s` of a row of `work`'s local block is in use; the rule of the routing.
__device__ __forceinline__ bool slot_used(AttentionArgs const& a, int32_t local_relative, int32_t row, int s) {
    int32_t const selection = a.chosen[int64_t{row} * a.slots + s];
    return selection >= 0 && selection < local_relative;
}

}  // namespace perigee::block_sparse
