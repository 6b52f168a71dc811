// The best scores of rows, while tiles of scores pass through a warp's registers. Scores that reach a row's threshold
// are rare after the first tiles: they are put aside in shared memory by the lanes that hold them, and compete for the
// row's places in turns, two lanes to a row.
//
// A warp has 16 rows. Lane l holds scores of the rows l / 4 and l / 4 + 8, and keeps places of row l / 4 + l % 4 / 2
// * 8.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/moba/cuda/block_scan.cuh"

namespace perigee::moba {

/// The order of candidates as a whole number: by score, of equal scores by block. kNoRank comes last.
using Rank = uint64_t;
inline constexpr Rank kNoRank = 0;
/// Fills places that a row must not use, before all scores, infinity included.
inline constexpr Rank kTakenRank = 0xfffffffeffffffff;
inline constexpr uint32_t kLeastOrdered = 0x007fffff;  // of minus infinity

__device__ __forceinline__ uint32_t ordered(float score) {
    uint32_t const bits = __float_as_uint(score + 0.0f);  // -0 equals 0
    return bits ^ (static_cast<int32_t>(bits) < 0 ? 0xffffffff : 0x80000000);
}
__device__ __forceinline__ float score_of(uint32_t ordered) {
    return __uint_as_float(ordered ^ (static_cast<int32_t>(ordered) < 0 ? 0x80000000 : 0xffffffff));
}
__device__ __forceinline__ Rank rank_of(float score, uint32_t block) { return Rank{ordered(score)} << 32 | block; }

/// Blocks are offered in descending order from step to step, so that one must exceed the threshold, not equal it.
/// kPlaces: at least the places of a row. Tiles have 64 blocks: lane l's s[4 j + i] belongs to row l / 4 + i / 2 * 8
/// and block `block` + 8 j + i % 2 for the lane's own `block`. NaN is no candidate.
template <int kPlaces>
class BestOfRows {
  public:
    static constexpr int kAside = 16;  // scores that a lane can put aside for each of its two rows
    struct Aside {
        uint2 candidate[2][kAside][32];  // score, block
    };

    /// `used` places, at most kPlaces; none where lane's row is not `there`.
    __device__ void begin(int used, bool there) {
        int const lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < kPlaces; ++i)
            place_[i] = !there || (lane % 2 == 0 && i < kPlaces - used) ? kTakenRank : kNoRank;
        threshold_[0] = threshold_[1] = -INFINITY;
        unfilled_ = true;
        aside_[0] = aside_[1] = 0;
        columns_aside_ = 0;
    }

    __device__ __forceinline__ void offer(float const (&s)[32], int32_t block, Aside& aside) {
        if (unfilled_) {
#pragma unroll
            for (int half = 0; half < 2; ++half) threshold_[half] = fmaxf(threshold_[half], least_of_best(s, half));
        }
        uint32_t hot = 0;  // columns of 8 blocks in which some lane has a candidate
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (s[4 * j] >= threshold_[0] || s[4 * j + 1] >= threshold_[0] || s[4 * j + 2] >= threshold_[1] ||
                s[4 * j + 3] >= threshold_[1])
                hot |= 1u << j;
        hot = __reduce_or_sync(kAllLanes, hot);
        if (hot == 0) return;
        int const columns = __popc(hot);
        if (columns_aside_ + columns > kAside / 2) compete(aside);
        columns_aside_ += columns;
        int const lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if ((hot >> j & 1) == 0) continue;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (s[4 * j + i] >= threshold_[i / 2]) {
                    aside.candidate[i / 2][aside_[i / 2]][lane] =
                        make_uint2(__float_as_uint(s[4 * j + i]), static_cast<uint32_t>(block + 8 * j + i % 2));
                    ++aside_[i / 2];
                }
        }
    }

    /// The row's blocks in ascending order, then -1: both lanes of a row get them all.
    __device__ void finish(Aside& aside, int32_t (&blocks)[kPlaces]) {
        if (columns_aside_ > 0) compete(aside);
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
            Rank const other = __shfl_xor_sync(kAllLanes, place_[kPlaces - 1 - i], 1);
            Rank const best = max(place_[i], other);  // the best kPlaces of both lanes, in some order
            bool const none = best == kNoRank || best == kTakenRank;
            blocks[i] = none ? INT32_MAX : static_cast<int32_t>(static_cast<uint32_t>(best));
        }
#pragma unroll
        for (int round = 0; round < kPlaces; ++round)
#pragma unroll
            for (int i = round % 2; i + 1 < kPlaces; i += 2) {
                int32_t const low = min(blocks[i], blocks[i + 1]), high = max(blocks[i], blocks[i + 1]);
                blocks[i] = low, blocks[i + 1] = high;
            }
    }

  private:
    /// A score that at least kPlaces of the row's new scores reach: every lane of the row's four has a quarter of them.
    __device__ __forceinline__ static float least_of_best(float const (&s)[32], int half) {
        constexpr int kQuarter = (kPlaces + 3) / 4;
        float best[kQuarter];
#pragma unroll
        for (int i = 0; i < kQuarter; ++i) best[i] = -INFINITY;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float x = fmaxf(fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]), -INFINITY);  // not NaN
#pragma unroll
            for (int i = 0; i < kQuarter; ++i) {
                float const better = fmaxf(best[i], x);
                x = fminf(best[i], x);
                best[i] = better;
            }
        }
        float least = best[kQuarter - 1];
        least = fminf(least, __shfl_xor_sync(kAllLanes, least, 1));
        return fminf(least, __shfl_xor_sync(kAllLanes, least, 2));
    }

    __device__ __forceinline__ void insert(Rank rank) {
#pragma unroll
        for (int i = kPlaces - 1; i > 0; --i)
            place_[i] = rank > place_[i] ? (rank > place_[i - 1] ? place_[i - 1] : rank) : place_[i];
        place_[0] = max(place_[0], rank);
    }

    /// What was put aside takes its places; thresholds rise.
    __device__ __forceinline__ void compete(Aside const& aside) {
        __syncwarp();
        int const lane = threadIdx.x % 32, row = lane / 2 % 2, first = lane / 4 * 4 + lane % 2 * 2;
        int const both = aside_[0] | aside_[1] << 16;
        int const of_first = __shfl_sync(kAllLanes, both, first) >> row * 16 & 0xffff;
        int const count = of_first + (__shfl_sync(kAllLanes, both, first + 1) >> row * 16 & 0xffff);
        int const rounds = __reduce_max_sync(kAllLanes, count);
        for (int i = 0; i < rounds; ++i) {
            bool const is_first = i < of_first;
            uint2 const candidate =
                i < count ? aside.candidate[row][is_first ? i : i - of_first][is_first ? first : first + 1] : uint2{};
            insert(i < count ? rank_of(__uint_as_float(candidate.x), candidate.y) : kNoRank);
        }
        // The last place of both lanes' best; what comes next must exceed its score.
        uint32_t last = UINT32_MAX;
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
            auto const mine = static_cast<uint32_t>(place_[i] >> 32);
            auto const other = static_cast<uint32_t>(place_[kPlaces - 1 - i] >> 32);
            last = min(last, max(mine, __shfl_xor_sync(kAllLanes, other, 1)));
        }
        float const exceeds = score_of(max(last + 1, kLeastOrdered));
        threshold_[0] = __shfl_sync(kAllLanes, exceeds, lane / 4 * 4);
        threshold_[1] = __shfl_sync(kAllLanes, exceeds, lane / 4 * 4 + 2);
        unfilled_ = __any_sync(kAllLanes, exceeds == -INFINITY);
        aside_[0] = aside_[1] = 0;
        columns_aside_ = 0;
        __syncwarp();  // all candidates have been read
    }

    Rank place_[kPlaces];  ///< best first
    float threshold_[2];   ///< what a new score of the lane's two rows must reach; NaN: none does
    int aside_[2];         ///< scores put aside by this lane
    int columns_aside_;    ///< since the last competition: twice as many bound every count
    bool unfilled_;        ///< some row has empty places
};

}  // namespace perigee::moba
