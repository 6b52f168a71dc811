// The best scores of rows, while tiles of scores pass through a warp's registers. Few scores reach their row's
// threshold after the first tiles: the warp lays a tile into shared memory, from where two lanes to a row pick those
// scores and insert them into their list of the row's best.
//
// A warp has 16 rows. Lane l holds scores of the rows l / 4 and l / 4 + 8, and the top k of row l / 4 + l % 4 / 2 * 8.
// Tiles have 64 blocks: s[4 j + 2 half + i] is the score of row l / 4 + 8 half and of the tile's block 8 j + l % 4 * 2
// + i. Sets of a lane's scores are words: bit n stands for s[n].
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "kernels/common/reduce.cuh"

namespace perigee::moba_gate {

using kernels::kAllLanes;

// Lists hold scores as whole numbers in the same order:
//
//   kTaken        INT_MAX       fills slots that a row must not use; no score replaces it
//   kMostScore    0x7f800000    infinity
//                 0             both zeros
//                 -0x7f800000   minus infinity
//   kEmpty        -INT_MAX      a slot without a block: any score replaces it
//
// kNoScore, a NaN, becomes kEmpty. Other NaNs have no place in the order, and never become candidates.

__device__ __forceinline__ int32_t ordered(float score) {
    int32_t const bits = __float_as_int(score), negative = bits >> 31;
    return ((bits & INT_MAX) ^ negative) - negative;
}
__device__ __forceinline__ float score_of(int32_t ordered) {
    return ordered < 0 ? -__int_as_float(-ordered) : __int_as_float(ordered);
}
inline constexpr uint32_t kNoScore = UINT32_MAX;  // bits of a float
inline constexpr int32_t kEmpty = -INT_MAX;
inline constexpr int32_t kMostScore = 0x7f800000;
inline constexpr int32_t kTaken = INT_MAX;

/// The worse of two scores; NaN is worse than all others, as it is to fmaxf.
__device__ __forceinline__ float worse(float a, float b) {
    float x;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}

/// Best first: Batcher's odd-even mergesort of a power of two, from the rounds that merge sequences of kSorted on.
template <int kSorted = 1, int kDistance = kSorted, int kCount>
__device__ __forceinline__ void sort_scores(float (&x)[kCount]) {
    constexpr int kFirst = kDistance % kSorted;
#pragma unroll
    for (int i = kFirst; i + kDistance < kCount; ++i)
        if ((i - kFirst) / kDistance % 2 == 0 && i / (2 * kSorted) == (i + kDistance) / (2 * kSorted)) {
            float const better = fmaxf(x[i], x[i + kDistance]);
            x[i + kDistance] = worse(x[i], x[i + kDistance]);
            x[i] = better;
        }
    if constexpr (kDistance > 1)
        sort_scores<kSorted, kDistance / 2>(x);
    else if constexpr (2 * kSorted < kCount)
        sort_scores<2 * kSorted, 2 * kSorted>(x);
}

/// The scores of both rows that belong to the lane's blocks below `limit`, counted from its first.
__device__ __forceinline__ uint32_t scores_below(int32_t limit) {
    int32_t const within = min(max(limit, 0), 64), column = within / 8, rest = min(within % 8, 2);
    uint32_t const whole = column < 8 ? (1u << 4 * column) - 1 : UINT32_MAX;
    return (whole & 0x33333333u) | (rest > 0 ? ((1u << rest) - 1) << 4 * column : 0);
}

/// Tiles are offered from the latest blocks to the first, so that of equal scores those offered first win.
/// kSlots: at least the slots of a row.
template <int kSlots>
class TopKRows {
  public:
    /// A row's scores in the order of the bits of its two lanes: 4 j + i % 4 of half i / 4 is that of block 8 j + i.
    /// Before each half, kNoScore; the room for it spreads the rows over the banks.
    struct Laid {
        float scores[16][2][36];
    };

    /// `laid` is the warp's.
    __device__ explicit TopKRows(Laid& laid) : laid_(laid), lane_(threadIdx.x % 32) {
        asm volatile("" : "+r"(lane_));  // kept in a register: rereading it is slow
        row_scores()[-1] = __uint_as_float(kNoScore);
    }

    /// `used` slots, at most kSlots; none where the lane's row is not `there`.
    __device__ void begin(int used, bool there) {
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
            score_[i] = !there || (lane_ % 2 == 0 && i < kSlots - used) ? kTaken : kEmpty;
            block_[i] = -1;
        }
        used_ = used;
        below_[0] = below_[1] = -INFINITY;
        must_exceed(there ? -INFINITY : INFINITY);
        insertions_ = kUnfilled;
    }

    /// Whether the lane's row is there: of one that is, the last slot of a lane is never taken from the beginning.
    __device__ bool there() const { return score_[kSlots - 1] != kTaken; }
    /// Whether scores that are no candidates must be NaN besides not being in `valid`.
    __device__ bool unfilled() const { return insertions_ >= kUnfilled; }

    /// A tile whose blocks begin at `from`. Only the scores in `valid` are candidates; NaN never is.
    __device__ __forceinline__ void offer(float const (&s)[32], uint32_t valid, int32_t from) {
        bool all = false;
        if (unfilled()) {
            must_exceed(score_of(ordered(bound_of_kth_best(s)) - 1));  // NaN of NaN and of minus infinity
            all = __any_sync(kAllLanes, below_[0] == -INFINITY || below_[1] == -INFINITY);
        }
        uint32_t const candidates = (all ? exceeding_or_all(s) : exceeding(s)) & valid;
        if (!__any_sync(kAllLanes, candidates != 0)) return;
#pragma unroll
        for (int n = 0; n < 32; n += 2)
            *reinterpret_cast<float2*>(
                &laid_.scores[lane_ / 4 + n / 2 % 2 * 8][lane_ % 4 / 2][4 + n / 4 * 4 + lane_ % 2 * 2]) =
                make_float2(s[n], s[n + 1]);
        __syncwarp();
        compete(candidates, from);
        __syncwarp();  // all candidates have been read
    }

    /// The row's blocks in ascending order, then INT_MAX: both lanes of a row get them all.
    __device__ void finish(int32_t (&blocks)[kSlots]) const {
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
            int32_t const score = __shfl_xor_sync(kAllLanes, score_[kSlots - 1 - i], 1);
            int32_t const block = __shfl_xor_sync(kAllLanes, block_[kSlots - 1 - i], 1);
            // The best kSlots of both lanes, in some order; without branches, which lanes would take in turns.
            bool const mine = (score_[i] > score) | ((score_[i] == score) & (block_[i] > block));
            int32_t const best = mine ? score_[i] : score;
            bool const none = (best == kEmpty) | (best == kTaken);
            blocks[i] = none ? INT_MAX : mine ? block_[i] : block;
        }
#pragma unroll
        for (int round = 0; round < kSlots; ++round)
#pragma unroll
            for (int i = round % 2; i + 1 < kSlots; i += 2) {
                int32_t const low = min(blocks[i], blocks[i + 1]), high = max(blocks[i], blocks[i + 1]);
                blocks[i] = low, blocks[i + 1] = high;
            }
    }

  private:
    __device__ __forceinline__ float* row_scores() const {
        return &laid_.scores[lane_ / 4 + lane_ / 2 % 2 * 8][lane_ % 2][4];
    }

    /// A lower bound of the k-th best of the row's new scores, k being its slots; NaN where it has fewer scores than
    /// slots. The scores are in 2 kBest groups, kBest for each of the row's two lanes. The bound is the k-th best of
    /// the groups' best scores: at least k scores reach it.
    __device__ __forceinline__ float bound_of_kth_best(float const (&s)[32]) const {
        constexpr int kBest = kSlots <= 2 ? 2 : kSlots <= 8 ? 8 : 16, kGroups = kBest / 2;
        bool const second = lane_ / 2 % 2 != 0, even = lane_ % 2 == 0;
        float best[kBest];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            float of[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                of[half] = fmaxf(s[4 * group + 2 * half], s[4 * group + 2 * half + 1]);
#pragma unroll
                for (int j = group + kGroups; j < 8; j += kGroups)
                    of[half] = fmaxf(of[half], fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
            }
            best[group] = second ? of[1] : of[0];
            best[kGroups + group] = __shfl_xor_sync(kAllLanes, second ? of[0] : of[1], 2);
        }
        sort_scores(best);
#pragma unroll 1
        for (int i = used_; i < kBest; ++i)  // slots that the row must not use are taken
#pragma unroll
            for (int at = kBest - 1; at >= 0; --at)
                if (even) best[at] = at > 0 ? best[at > 0 ? at - 1 : 0] : INFINITY;
        float last = INFINITY;
#pragma unroll
        for (int i = 0; i < kBest; ++i)
            last = worse(last, fmaxf(best[i], __shfl_xor_sync(kAllLanes, best[kBest - 1 - i], 1)));
        return last;
    }

    /// The scores above their row's threshold below_. Never NaN: the difference then has sign bit 0.
    __device__ __forceinline__ uint32_t exceeding(float const (&s)[32]) const {
        uint32_t above[4] = {};  // in turns, as each waits for itself
#pragma unroll
        for (int n = 31; n >= 0; --n)
            above[n / 8] = __funnelshift_l(__float_as_uint(below_[n / 2 % 2] - s[n]), above[n / 8], 1);
        return __byte_perm(__byte_perm(above[0], above[1], 0x40), __byte_perm(above[2], above[3], 0x40), 0x5410);
    }
    /// The same, and minus infinity where all scores will do.
    __device__ __forceinline__ uint32_t exceeding_or_all(float const (&s)[32]) const {
        uint32_t above = 0;
#pragma unroll
        for (int n = 0; n < 32; ++n) {
            float const below = below_[n / 2 % 2];
            if (s[n] > below || (s[n] == below && below == -INFINITY)) above |= 1u << n;
        }
        return above;
    }

    __device__ __forceinline__ void insert(int32_t score, int32_t block) {
#pragma unroll
        for (int i = kSlots - 1; i > 0; --i) {
            if (score > score_[i]) block_[i] = score > score_[i - 1] ? block_[i - 1] : block;
            score_[i] = max(score_[i], min(score_[i - 1], score));
        }
        if (score > score_[0]) block_[0] = block;
        score_[0] = max(score_[0], score);
    }

    /// Those of two lanes of a row, whose blocks alternate by twos: higher bits for later blocks.
    __device__ __forceinline__ uint32_t of_row(uint32_t candidates) const {
        uint32_t const row = lane_ / 2 % 2, first = lane_ / 4 * 4 + lane_ % 2 * 2;
        uint32_t const of_first = __shfl_sync(kAllLanes, candidates, first) >> row * 2 & 0x33333333u;
        uint32_t const of_second = __shfl_sync(kAllLanes, candidates, first + 1) >> row * 2 & 0x33333333u;
        return of_first | of_second << 2;
    }

    /// The highest bit; -1 where there is none.
    __device__ __forceinline__ static int highest(uint32_t word) {
        int bit;
        asm("bfind.u32 %0, %1;" : "=r"(bit) : "r"(word));
        return bit;
    }

    /// The candidates that lanes found take their slots.
    __device__ __forceinline__ void compete(uint32_t found, int32_t from) {
        int32_t const column = from + static_cast<int32_t>(lane_ % 2 * 4);
        float const volatile* const scores = row_scores();  // volatile: read ahead, as below, not when needed
        uint32_t left = of_row(found);
        int bit = highest(left);
        float score = scores[bit];  // kNoScore where none is left
        do {
            int32_t const its_score = ordered(score), its_block = column + bit + (bit & 28);
            left &= ~__funnelshift_lc(0, 1, static_cast<uint32_t>(bit));
            bit = highest(left);
            score = scores[bit];
            insert(its_score, its_block);
            ++insertions_;
        } while (__any_sync(kAllLanes, left != 0));
        if (insertions_ >= kInsertions) raise();
    }

    /// From now on scores must exceed the last slot of both lanes' best.
    __device__ __forceinline__ void raise() {
        int32_t last = INT_MAX;
#pragma unroll
        for (int i = 0; i < kSlots; ++i)
            last = min(last, max(score_[i], __shfl_xor_sync(kAllLanes, score_[kSlots - 1 - i], 1)));
        bool const unfilled = last == kEmpty;
        must_exceed(unfilled ? -INFINITY : score_of(min(last, kMostScore)));
        insertions_ = __any_sync(kAllLanes, unfilled) ? kUnfilled : 0;
    }

    /// What the lanes found for their rows; NaN says nothing.
    __device__ __forceinline__ void must_exceed(float local) {
        float const other = __shfl_xor_sync(kAllLanes, local, 2);
        bool const second = (lane_ & 2) != 0;
        below_[0] = fmaxf(below_[0], second ? other : local);
        below_[1] = fmaxf(below_[1], second ? local : other);
    }

    static constexpr int kInsertions = 4;      // after which it pays to raise the thresholds
    static constexpr int kUnfilled = 1 << 24;  // thresholds are raised every time while some row has empty slots

    Laid& laid_;
    uint32_t lane_;
    int32_t score_[kSlots];  ///< best first
    int32_t block_[kSlots];
    float below_[2];  ///< of the lane's two rows: scores must exceed it, but for empty slots
    int used_;        ///< slots of a row
    int insertions_;  ///< since thresholds were raised
};

}  // namespace perigee::moba_gate
