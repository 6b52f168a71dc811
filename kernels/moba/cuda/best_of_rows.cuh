// The best scores of rows, while tiles of scores pass through a warp's registers. Few scores reach their row's
// threshold after the first tiles: the warp lays a tile into shared memory, from where two lanes to a row pick those
// scores and insert them into their lists of the row's best.
//
// A warp has 16 rows. Lane l holds scores of the rows l / 4 and l / 4 + 8, and a list of row l / 4 + l % 4 / 2 * 8.
// Tiles have 64 blocks: s[4 j + 2 half + i] is the score of row l / 4 + 8 half and of the tile's block 8 j + l % 4 * 2
// + i. Sets of a lane's scores are words: bit n stands for s[n].
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "kernels/moba/cuda/block_scan.cuh"

namespace perigee::moba {

/// Scores as whole numbers in the same order; NaN is not ordered.
__device__ __forceinline__ int32_t ordered(float score) {
    int32_t const bits = __float_as_int(score + 0.0f);  // -0 equals 0
    return bits ^ (bits >> 31 & INT_MAX);
}
__device__ __forceinline__ float score_of(int32_t ordered) {
    return __int_as_float(ordered ^ (ordered >> 31 & INT_MAX));
}
inline constexpr int32_t kLeastScore = static_cast<int32_t>(0x807fffff);  // minus infinity
inline constexpr int32_t kMostScore = 0x7f800000;                         // infinity
inline constexpr int32_t kEmpty = INT_MIN;                                // less than any score
inline constexpr int32_t kTaken = INT_MAX;  // more than any score: fills places that a row must not use

/// The scores of both rows that belong to the lane's blocks below `limit`, counted from its first.
__device__ __forceinline__ uint32_t scores_below(int32_t limit) {
    int32_t const within = min(max(limit, 0), 64), column = within / 8, rest = min(within % 8, 2);
    uint32_t const whole = column < 8 ? (1u << 4 * column) - 1 : UINT32_MAX;
    return (whole & 0x33333333u) | (rest > 0 ? ((1u << rest) - 1) << 4 * column : 0);
}

/// Tiles are offered from the latest blocks to the first, so that of equal scores those offered first win.
/// kPlaces: at least the places of a row.
template <int kPlaces>
class BestOfRows {
  public:
    struct Laid {
        static constexpr int kStride = 72;  // of a row: 8 more than its scores spread the rows over the banks
        float scores[16][kStride];
    };

    /// `used` places, at most kPlaces; none where the lane's row is not `there`.
    __device__ void begin(int used, bool there) {
        int const lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
            score_[i] = !there || (lane % 2 == 0 && i < kPlaces - used) ? kTaken : kEmpty;
            block_[i] = -1;
        }
        threshold_[0] = threshold_[1] = -INFINITY;
        insertions_ = 0;
        unfilled_ = true;
    }

    /// Whether scores that are no candidates must be NaN besides not being in `valid`.
    __device__ bool unfilled() const { return unfilled_; }

    /// A tile whose blocks begin at `from`. Only the scores in `valid` are candidates; NaN never is.
    __device__ __forceinline__ void offer(float const (&s)[32], uint32_t valid, int32_t from, Laid& laid) {
        int const lane = threadIdx.x % 32;
        if (unfilled_) {
#pragma unroll
            for (int half = 0; half < 2; ++half) threshold_[half] = fmaxf(threshold_[half], reached_by_all(s, half));
        }
        uint32_t below[4] = {};  // in turns, as each waits for itself
#pragma unroll
        for (int n = 31; n >= 0; --n)
            below[n / 8] = __funnelshift_l(__float_as_uint(s[n] - threshold_[n / 2 % 2]), below[n / 8], 1);
        uint32_t const candidates = ~(below[0] | below[1] << 8 | below[2] << 16 | below[3] << 24) & valid;
        if (!__any_sync(kAllLanes, candidates != 0)) return;
#pragma unroll
        for (int n = 0; n < 32; n += 2)
            *reinterpret_cast<float2*>(&laid.scores[lane / 4 + n / 2 % 2 * 8][n / 4 * 8 + lane % 4 * 2]) =
                make_float2(s[n], s[n + 1]);
        __syncwarp();
        compete(candidates, from, laid);
        __syncwarp();  // all candidates have been read
    }

    /// The row's blocks in ascending order, then INT_MAX: both lanes of a row get them all.
    __device__ void finish(int32_t (&blocks)[kPlaces]) const {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
            int32_t const score = __shfl_xor_sync(kAllLanes, score_[kPlaces - 1 - i], 1);
            int32_t const block = __shfl_xor_sync(kAllLanes, block_[kPlaces - 1 - i], 1);
            // The best kPlaces of both lanes, in some order; without branches, which lanes would take in turns.
            bool const mine = (score_[i] > score) | ((score_[i] == score) & (block_[i] > block));
            int32_t const best = mine ? score_[i] : score;
            bool const none = (best == kEmpty) | (best == kTaken);
            blocks[i] = none ? INT_MAX : mine ? block_[i] : block;
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
    /// A score that at least kPlaces of the row's new scores reach: half of them in either pair of the row's four
    /// lanes.
    __device__ __forceinline__ static float reached_by_all(float const (&s)[32], int half) {
        constexpr int kHalf = (kPlaces + 1) / 2;
        float best[kHalf];  // of the lane's pairs, best first
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float x = fmaxf(fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]), -INFINITY);  // not NaN
#pragma unroll
            for (int i = 0; i < kHalf && i < j; ++i) {
                float const better = fmaxf(best[i], x);
                x = fminf(best[i], x);
                best[i] = better;
            }
            if (j < kHalf) best[j] = x;
        }
        float least = INFINITY;
#pragma unroll
        for (int i = 0; i < kHalf; ++i)
            least = fminf(least, fmaxf(best[i], __shfl_xor_sync(kAllLanes, best[kHalf - 1 - i], 1)));
        return fminf(least, __shfl_xor_sync(kAllLanes, least, 2));
    }

    __device__ __forceinline__ void insert(int32_t score, int32_t block) {
        bool better = score > score_[kPlaces - 1];
#pragma unroll
        for (int i = kPlaces - 1; i > 0; --i) {
            bool const better_still = score > score_[i - 1];
            block_[i] = better_still ? block_[i - 1] : better ? block : block_[i];
            score_[i] = max(score_[i], min(score_[i - 1], score));
            better = better_still;
        }
        block_[0] = better ? block : block_[0];
        score_[0] = max(score_[0], score);
    }

    /// Those of two lanes of a row, whose blocks alternate by twos: higher bits for later blocks.
    __device__ __forceinline__ static uint32_t of_row(uint32_t candidates) {
        int const lane = threadIdx.x % 32, row = lane / 2 % 2, first = lane / 4 * 4 + lane % 2 * 2;
        uint32_t const of_first = __shfl_sync(kAllLanes, candidates, first) >> row * 2 & 0x33333333u;
        uint32_t const of_second = __shfl_sync(kAllLanes, candidates, first + 1) >> row * 2 & 0x33333333u;
        return of_first | of_second << 2;
    }

    /// The candidates that lanes found take their places.
    __device__ __forceinline__ void compete(uint32_t found, int32_t from, Laid const& laid) {
        int const lane = threadIdx.x % 32, column = lane % 2 * 4;
        uint32_t left = of_row(found);
        float const* const scores = &laid.scores[lane / 4 + lane / 2 % 2 * 8][column];
        int const rounds = __reduce_max_sync(kAllLanes, __popc(left));
        int32_t score, block;
        auto const fetch = [&] {
            int const bit = 31 - __clz(static_cast<int>(left)), at = bit + (bit & 28);
            float const x = scores[at];  // any where none is left
            score = left != 0 && x == x ? ordered(x) : kEmpty;
            block = from + column + at;
            left &= ~(1u << (bit & 31));
        };
        fetch();
#pragma unroll 1
        for (int i = 0; i < rounds; ++i) {
            int32_t const its_score = score, its_block = block;
            fetch();  // ahead, as memory is slow
            insert(its_score, its_block);
        }
        insertions_ += rounds;
        if (unfilled_ || insertions_ >= kInsertions) raise_thresholds();
    }

    /// To what exceeds the last place of both lanes' best.
    __device__ __forceinline__ void raise_thresholds() {
        int const lane = threadIdx.x % 32;
        int32_t last = INT_MAX;
#pragma unroll
        for (int i = 0; i < kPlaces; ++i)
            last = min(last, max(score_[i], __shfl_xor_sync(kAllLanes, score_[kPlaces - 1 - i], 1)));
        float const exceeds = score_of(min(max(last, kLeastScore - 1), kMostScore - 1) + 1);
        threshold_[0] = __shfl_sync(kAllLanes, exceeds, lane / 4 * 4);
        threshold_[1] = __shfl_sync(kAllLanes, exceeds, lane / 4 * 4 + 2);
        unfilled_ = __any_sync(kAllLanes, exceeds == -INFINITY);
        insertions_ = 0;
    }

    static constexpr int kInsertions = 4;  // after which it pays to raise the thresholds

    int32_t score_[kPlaces];  ///< best first
    int32_t block_[kPlaces];
    float threshold_[2];  ///< of the lane's two rows: no score below it will do
    int insertions_;      ///< since thresholds were raised
    bool unfilled_;       ///< some row has empty places
};

}  // namespace perigee::moba
