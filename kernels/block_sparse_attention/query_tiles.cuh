// Query tiles: which rows of q meet which keys, routed rows of a block or its local rows, and in which order.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/block_sparse_attention/stages.h"
#include "kernels/common/fragments.cuh"

namespace perigee::block_sparse {

using namespace kernels;

/// What attention kernels are given. A row is (query, head) of [queries, H].
struct AttentionArgs : Scratch, BlockSparseGradients {
    bf16 const *q, *k, *v;
    int32_t const* chosen;
    bf16* o_out;     ///< of the forward
    float* lse_out;  ///
    int64_t indices_stride;
    float scale;
    int32_t heads, kv_heads, group, slots, capacity, chunks;
    int32_t tokens, query_begin, queries;
    int32_t head, pass_heads, chunk, end_chunk;  ///< of the pass
    int32_t pass_begin, pass_end;                ///< its queries
    int32_t pass_rows;                           ///< rows of one key/value head that `partial` has room for
    int32_t tiles_per_block;                     ///< tiles of rows, or of keys, that a whole block has
    bool adds_to_dq;                             ///< dq is zero before, and has no partial results
};
AttentionArgs attention_args(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients = {});
/// Entries of each block of kv head g before a chunk; before `chunks`: all.
__device__ __forceinline__ int32_t* starts_of_chunk(AttentionArgs const& a, int64_t g, int32_t chunk) {
    return a.chunk_starts + (g * (a.chunks + 1) + chunk) * a.capacity;
}

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
    Work work{head, a.head + head, block, a.blocks[block]};
    work.key_end = work.block.end;
    int32_t const indices = a.offsets[work.g * (a.capacity + 1) + block];
    int32_t const first = a.tiles[int64_t{head} * (a.capacity + 1) + block];
    work.begin = indices + starts_of_chunk(a, work.g, a.chunk)[block] + (tile - first) * kRows;
    indices_end = indices + starts_of_chunk(a, work.g, a.end_chunk)[block];
    work.end = min(indices_end, work.begin + kRows);
    return work;
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

/// Whether slot `s` of a row of `work`'s local block is in use; the rule of the routing.
__device__ __forceinline__ bool slot_used(AttentionArgs const& a, int32_t local_relative, int32_t row, int s) {
    int32_t const selection = a.chosen[int64_t{row} * a.slots + s];
    return selection >= 0 && selection < local_relative;
}

// The order in which a grid works through tiles of rows. Every walker of a thread block sees the same tiles; a whole
// warp walks. A grid with a thread block for each tile takes one step.

/// Tiles of routed rows, head after head, so that all thread blocks share one head's q in the cache. Thread block c
/// takes every gridDim.x-th tile, so that few blocks of keys are in use at a time; or, where `contiguous`, the c-th of
/// gridDim.x ranges of each head, so that a thread block keeps the keys of a block for many tiles.
template <int kRows>
class RoutedScheduler {
  public:
    __device__ RoutedScheduler(AttentionArgs const& a, bool contiguous) : a_(a), contiguous_(contiguous) {}

    /// On to the next tile; the first call to the first. False beyond the last.
    __device__ bool next() {
        int32_t const before = tile_;
        tile_ += contiguous_ ? 1 : static_cast<int32_t>(gridDim.x);
        if (head_ >= 0 && tile_ < end_ && tile_ < block_end_) {  // the same block
            work_.begin += (tile_ - before) * kRows;
            work_.end = min(indices_end_, work_.begin + kRows);
            return true;
        }
        // The first call: to this thread block's first tile.
        if (head_ < 0) tile_ += contiguous_ ? -1 : static_cast<int32_t>(blockIdx.x - gridDim.x);
        int width = 1;
        while (tile_ >= end_) {
            if (++head_ == a_.pass_heads) return false;
            tile_ -= end_;
            int64_t const tiles = tiles_of_head()[a_.capacity];
            begin_ = contiguous_ ? static_cast<int32_t>(tiles * blockIdx.x / gridDim.x) : 0;
            end_ = static_cast<int32_t>(contiguous_ ? tiles * (blockIdx.x + 1) / gridDim.x : tiles);
            tile_ += begin_;
            block_ = 0;
            width = 1024;
        }
        for (; width > 0; width /= 32) seek(width);
        block_begin_ = tiles_of_head()[block_];
        work_ = routed_work<kRows>(a_, head_, block_, tile_, indices_end_);
        return true;
    }
    __device__ Work const& work() const { return work_; }
    /// Whether this thread block's tile before, or after, has the same keys.
    __device__ bool continues() const { return contiguous_ && tile_ > begin_ && tile_ > block_begin_; }
    __device__ bool goes_on() const { return contiguous_ && tile_ + 1 < end_ && tile_ + 1 < block_end_; }

  private:
    __device__ int32_t const* tiles_of_head() const { return a_.tiles + int64_t{head_} * (a_.capacity + 1); }
    /// On to the last block, `width` blocks at a time, whose tiles begin at or before this one.
    __device__ void seek(int width) {
        int32_t const* const tiles = tiles_of_head();
        for (unsigned passed = kAllLanes; passed == kAllLanes;) {
            int32_t const at = block_ + (static_cast<int32_t>(threadIdx.x % 32) + 1) * width;
            int32_t const first = at <= a_.capacity ? tiles[at] : INT_MAX;
            passed = __ballot_sync(kAllLanes, first <= tile_);
            int const count = __popc(passed);
            block_ += count * width;
            if (count < 32) block_end_ = __shfl_sync(kAllLanes, first, count);
        }
    }

    AttentionArgs const& a_;
    bool contiguous_;
    int32_t head_ = -1, tile_ = 0, begin_ = 0, end_ = 0;   // tiles of the head
    int32_t block_ = 0, block_begin_ = 0, block_end_ = 0;  // and its tiles
    int32_t indices_end_ = 0;
    Work work_;
};

/// Tiles of the blocks' local rows: in each round of gridDim.x tiles that might be, one; 32 rounds are looked at
/// together. Every other round goes backwards, so that no thread block has the late, long tiles of all its blocks.
template <int kRows>
class LocalScheduler {
  public:
    __device__ LocalScheduler(AttentionArgs const& a, bool)
        : a_(a), per_head_(a.capacity * a.tiles_per_block), end_(int64_t{a.pass_heads} * per_head_) {}

    __device__ bool next() {
        while (there_ == 0) {
            round_ += 32;
            if (int64_t{round_} * gridDim.x >= end_) return false;
            Work work;
            int64_t const x = number(round_ + static_cast<int32_t>(threadIdx.x % 32));
            there_ = __ballot_sync(kAllLanes, x < end_ && find(x, work));
        }
        find(number(round_ + __ffs(static_cast<int>(there_)) - 1), work_);
        there_ &= there_ - 1;
        return true;
    }
    __device__ Work const& work() const { return work_; }
    __device__ bool continues() const { return false; }
    __device__ bool goes_on() const { return false; }

  private:
    __device__ int64_t number(int32_t round) const {
        return int64_t{round} * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    }
    __device__ bool find(int64_t x, Work& work) const {
        return local_work<kRows>(a_, static_cast<int32_t>(x / per_head_), static_cast<int32_t>(x % per_head_), work);
    }

    AttentionArgs const& a_;
    int64_t per_head_, end_;
    int32_t round_ = -32;
    unsigned there_ = 0;
    Work work_;
};

}  // namespace perigee::block_sparse
