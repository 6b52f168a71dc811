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

/// Top-k selection by one warp from score_of(block) of the blocks before `current`. Each pick is the best score below
/// the previous pick. There are k - 1 picks, or k - 2 and block 0. keep(slot, block) receives the result, in ascending
/// order, then -1.
template <class ScoreOf, class Keep>
__device__ __forceinline__ void pick(ScoreArgs const& a, int32_t current, ScoreOf score_of, Keep keep_in) {
    using namespace kernels;
    constexpr int kHeld = 16;                                          // scores per lane kept in registers
    int const lane = threadIdx.x % 32, first = a.force_first ? 1 : 0;  // block 0 has a slot and does not compete
    auto const rank = [&](float score, int32_t block) {
        return rank_of(a.force_previous && block == current - 1 ? INFINITY : score, block);
    };
    float held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = i * 32 + lane < current ? score_of(i * 32 + lane) : NAN;
    unsigned long long last = ~0ull;
    int32_t best[2] = {-1, -1};  // of slots `lane` and 32 + `lane`
    int32_t found = 0;
    auto const keep = [&](int32_t block) {
        if (lane == found % 32) (found < 32 ? best[0] : best[1]) = block;
        ++found;
    };
    while (found < a.slots - first) {
        unsigned long long most = 0;
        auto const compete = [&](float score, int32_t block) {
            unsigned long long const its = rank(score, block);
            if (block >= first && its < last && its > most) most = its;
        };
#pragma unroll
        for (int i = 0; i < kHeld; ++i)
            if (i * 32 < current) compete(held[i], i * 32 + lane);
        for (int32_t block = kHeld * 32 + lane; block < current; block += 32) compete(score_of(block), block);
        most = across_lanes<32>(most, [](auto x, auto y) { return x > y ? x : y; });
        if (most == 0) break;
        last = most;
        keep(static_cast<int32_t>(most & 0xffffffffu) - 1);
    }
    if (first > 0 && current > 0) keep(0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int32_t const slot = half * 32 + lane;
        int32_t place = slot < found ? 0 : slot;
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
        pick(
            a, current, [&](int32_t block) { return __ldcg(scores + block); },
            [&](int32_t slot, int32_t block) {
                for (int i = 0; i < a.summed; ++i) a.chosen[(head + h + i) * a.slots + slot] = block;
            });
    }
}

}  // namespace perigee::decode
