// Queries of one key/value head as left factors, and where their scores go: what both kernels of scores do alike.
#pragma once

#include "kernels/decode/pages.cuh"
#include "kernels/decode/scores.h"

namespace perigee::decode {

/// The warp's rows are heads [first, first + 16) of those `end` heads that begin at `q`; zeros beyond. The fragments of
/// mma.sync and of wgmma are the same.
template <int D>
__device__ __forceinline__ void load_heads(uint32_t (&x)[D / 16][4], bf16 const* q, int first, int end) {
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int const head = first + lane / 4 + half * 8;
        bool const there = head < end;
        bf16 const* const at = q + int64_t{there ? head : 0} * D + lane % 4 * 2;
#pragma unroll
        for (int step = 0; step < D / 16; ++step) {
            x[step][half] = there ? *reinterpret_cast<uint32_t const*>(at + step * 16) : 0;
            x[step][half + 2] = there ? *reinterpret_cast<uint32_t const*>(at + step * 16 + 8) : 0;
        }
    }
}

/// Results [16, 64] of the warp: rows are heads [first, end) from `head` on, columns blocks [from, current).
__device__ __forceinline__ void write_scores(ScoreArgs const& a, float const (&s)[32], int64_t head, int first, int end,
                                             int32_t from, int32_t current) {
    int const lane = threadIdx.x % 32;
    int32_t const most = a.cache.most_blocks();
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        int const row = first + lane / 4 + i % 4 / 2 * 8;
        int32_t const block = from + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < end && block < current) a.scores[(head + row) * most + block] = s[i];
    }
}

}  // namespace perigee::decode
