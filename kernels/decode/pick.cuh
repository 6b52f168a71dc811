// Top-k selection of past blocks from their scores.
#pragma once

#include "kernels/common/arrivals.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/decode/scores.h"
#include "kernels/moba_gate/top_k_rows.cuh"

namespace perigee::decode {

/// A sort key from score and block index. Equal scores rank the later block higher. 0 is never selected.
__device__ __forceinline__ unsigned long long rank_of(float score, int32_t block) {
    if (isnan(score)) return 0;
    uint32_t const high = static_cast<uint32_t>(moba_gate::ordered(score)) ^ 0x80000000u;
    return static_cast<unsigned long long>(high) << 32 | static_cast<uint32_t>(block + 1);
}

constexpr int32_t kFewCandidates = 512;

/// How candidate blocks rank: the largest is picked first.
struct Ranks {
    int32_t first, current;  ///< candidates are blocks [first, current)
    bool force_previous;

    __device__ Ranks(ScoreArgs const& a, int32_t current_block)
        : first(a.force_first ? 1 : 0), current(current_block), force_previous(a.force_previous) {}
    __device__ unsigned long long operator()(float score, int32_t block) const {
        if (block < first) return 0;
        return rank_of(force_previous && block == current - 1 ? INFINITY : score, block);
    }
};
__device__ __forceinline__ int32_t block_of(unsigned long long rank) {
    return static_cast<int32_t>(rank & 0xffffffffu) - 1;
}
__device__ __forceinline__ unsigned long long larger(unsigned long long x, unsigned long long y) {
    return x > y ? x : y;
}
/// The largest of a warp's lanes, in every lane.
__device__ __forceinline__ unsigned long long largest_of_warp(unsigned long long x) {
    auto const high = static_cast<uint32_t>(x >> 32), low = static_cast<uint32_t>(x);
    uint32_t const most = __reduce_max_sync(kernels::kAllLanes, high);
    return static_cast<unsigned long long>(most) << 32 | __reduce_max_sync(kernels::kAllLanes, high == most ? low : 0);
}

/// Candidates whose scores are in shared memory, for one warp. Each pick reads them all.
struct FewCandidates {
    float const* scores;
    Ranks ranks;
    unsigned long long limit = ~0ull;

    /// The best rank of all; 0 if there is none.
    __device__ __forceinline__ unsigned long long best() const {
        unsigned long long most = 0;
#pragma unroll 1
        for (int32_t block = static_cast<int32_t>(threadIdx.x % 32); block < ranks.current; block += 32) {
            unsigned long long const its = ranks(scores[block], block);
            if (its < limit) most = larger(most, its);
        }
        return largest_of_warp(most);
    }
    /// Those of rank `taken` or above compete no more.
    __device__ void take(unsigned long long taken) { limit = taken; }
};

/// The same for any number: kFewCandidates scores are in registers at a time. Of more, the best of each of up to 64
/// segments is known, and a pick reads its segment again.
template <class ScoreOf>
class ManyCandidates {
  public:
    __device__ __forceinline__ ManyCandidates(ScoreOf const& score_of, Ranks const& rank)
        : score_of_(score_of), rank_(rank), current_(rank.current), in_registers_(current_ <= kFewCandidates) {
        if (in_registers_) {
            load(0, current_);
            low_ = best_loaded(0, current_, ~0ull);
            return;
        }
        width_ = kFewCandidates * ((current_ + kMostNarrow - 1) / kMostNarrow);
        for (int32_t segment = 0; segment * width_ < current_; ++segment) note_best_of(segment, ~0ull);
    }
    /// The best rank of all; 0 if there is none.
    __device__ __forceinline__ unsigned long long best() const {
        return in_registers_ ? low_ : largest_of_warp(max(low_, high_));
    }
    /// Those of rank `taken` or above compete no more.
    __device__ __forceinline__ void take(unsigned long long taken) {
        if (in_registers_)
            low_ = best_loaded(0, current_, taken);
        else
            note_best_of(block_of(taken) / width_, taken);
    }

  private:
    static constexpr int kHeld = kFewCandidates / 32;
    static constexpr int32_t kMostNarrow = 64 * kFewCandidates;

    __device__ __forceinline__ void load(int32_t from, int32_t end) {
        int const lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) held_[i] = from + i * 32 + lane < end ? score_of_(from + i * 32 + lane) : NAN;
    }
    /// Of those loaded, the best rank below `limit`, in every lane.
    __device__ __forceinline__ unsigned long long best_loaded(int32_t from, int32_t end,
                                                              unsigned long long limit) const {
        int const lane = threadIdx.x % 32;
        unsigned long long most = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            if (from + i * 32 >= end) continue;
            unsigned long long const its = rank_(held_[i], from + i * 32 + lane);
            if (its < limit && its > most) most = its;
        }
        return largest_of_warp(most);
    }
    __device__ __forceinline__ void note_best_of(int32_t segment, unsigned long long limit) {
        int32_t const end = min(segment * width_ + width_, current_);
        unsigned long long its = 0;
        for (int32_t from = segment * width_; from < end; from += kFewCandidates) {
            load(from, end);
            its = larger(its, best_loaded(from, end, limit));
        }
        if (static_cast<int32_t>(threadIdx.x % 32) == segment % 32) (segment < 32 ? low_ : high_) = its;
    }

    ScoreOf const score_of_;
    Ranks const rank_;
    int32_t const current_;
    bool const in_registers_;  ///< low_ is the best of all, in every lane
    int32_t width_ = 0;
    float held_[kHeld];
    unsigned long long low_ = 0, high_ = 0;  ///< the best of segments `lane` and 32 + `lane`
};

/// Top-k selection by one warp. There are k - 1 picks, or k - 2 and block 0. keep(slot, block) receives the result, in
/// ascending order, then -1.
template <class Candidates, class Keep>
__device__ __forceinline__ void pick(ScoreArgs const& a, int32_t current, Candidates candidates, Keep keep_in) {
    using namespace kernels;
    int const lane = threadIdx.x % 32, first = a.force_first ? 1 : 0;  // block 0 has a slot and does not compete
    int32_t best[2] = {-1, -1};                                        // of slots `lane` and 32 + `lane`
    int32_t found = 0;
    auto const keep = [&](int32_t block) {
        if (lane == found % 32) (found < 32 ? best[0] : best[1]) = block;
        ++found;
    };
#pragma unroll 1
    while (found < a.slots - first) {
        unsigned long long const most = candidates.best();
        if (most == 0) break;
        keep(block_of(most));
        if (found < a.slots - first) candidates.take(most);
    }
    if (first > 0 && current > 0) keep(0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (half * 32 >= a.slots) break;
        int32_t const slot = half * 32 + lane;
        int32_t place = slot < found ? 0 : slot;
#pragma unroll 1
        for (int32_t i = 0; i < found; ++i) {
            int32_t const other = __shfl_sync(kAllLanes, i < 32 ? best[0] : best[1], i % 32);
            if (slot < found) place += other < best[half];
        }
        if (slot < a.slots) keep_in(place, slot < found ? best[half] : -1);
    }
}

/// Called by all threads of a thread block after it has written its scores of heads [head, head + group). The last
/// thread block to arrive picks.
__device__ __forceinline__ void pick_if_last(ScoreArgs const& a, int64_t head, int32_t current) {
    unsigned const tiles = max((current + kScoreBlocks - 1) / kScoreBlocks, 1);
    if (!kernels::last_to_arrive(a.arrived + blockIdx.z * a.cache.kv_heads + blockIdx.y, tiles)) return;
    for (int h = threadIdx.x / 32 * a.summed; h < a.group; h += kScoreThreads / 32 * a.summed) {
        float const* const scores = a.scores + (head + h) * a.cache.most_blocks();
        auto const score_of = [&](int32_t block) { return __ldcg(scores + block); };
        pick(a, current, ManyCandidates(score_of, Ranks(a, current)), [&](int32_t slot, int32_t block) {
            for (int i = 0; i < a.summed; ++i) a.chosen[(head + h + i) * a.slots + slot] = block;
        });
    }
}

}  // namespace perigee::decode
