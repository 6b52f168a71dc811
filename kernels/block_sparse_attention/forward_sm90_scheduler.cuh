// The order in which a persistent grid works through tiles of rows. Every walker of a thread block sees the same tiles,
// numbered from 0; a walker may go several tiles at a time. A whole warp walks.
#pragma once

#include <algorithm>

#include "kernels/block_sparse_attention/query_tiles.cuh"

namespace perigee::block_sparse {

/// Tiles of routed rows, head after head, so that all thread blocks share one head's q in the cache. Thread block c
/// takes every gridDim.x-th tile, so that few blocks of keys are in use at a time; or, where `contiguous`, the c-th of
/// gridDim.x ranges of each head, so that a thread block keeps the keys of a block for many tiles.
template <int kRows>
class RoutedScheduler {
  public:
    __device__ RoutedScheduler(AttentionArgs const& a, int32_t heads, bool contiguous)
        : a_(a), heads_(heads), contiguous_(contiguous) {}

    /// Goes `count` tiles on, the first call from before the first tile. False beyond the last.
    __device__ bool next(int count) {
        int32_t const before = tile_;
        tile_ += contiguous_ ? count : count * static_cast<int32_t>(gridDim.x);
        if (head_ >= 0 && tile_ < end_ && tile_ < block_end_) {  // the same block
            work_.begin += (tile_ - before) * kRows;
            work_.end = min(indices_end_, work_.begin + kRows);
            return true;
        }
        if (head_ < 0) tile_ += contiguous_ ? -1 : static_cast<int32_t>(blockIdx.x - gridDim.x);
        int width = 1;
        while (tile_ >= end_) {
            if (++head_ == heads_) return false;
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
    int32_t heads_;
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
    __device__ LocalScheduler(AttentionArgs const& a, int32_t heads, bool)
        : a_(a), per_head_(a.capacity * a.tiles_per_block), end_(int64_t{heads} * per_head_) {}

    __device__ bool next(int count) {
        for (;;) {
            for (; count > 0 && there_ != 0; --count) {
                taken_ = number(round_ + __ffs(static_cast<int>(there_)) - 1);
                there_ &= there_ - 1;
            }
            if (count == 0) {
                find(taken_, work_);
                return true;
            }
            round_ += 32;
            if (int64_t{round_} * gridDim.x >= end_) return false;
            Work work;
            int64_t const x = number(round_ + static_cast<int32_t>(threadIdx.x % 32));
            there_ = __ballot_sync(kAllLanes, x < end_ && find(x, work));
        }
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
    int64_t taken_ = 0;
    int32_t round_ = -32;
    unsigned there_ = 0;
    Work work_;
};

}  // namespace perigee::block_sparse
