// Results in the registers of a warpgroup's product to memory. `half` is the lane's row lane / 4 or the one 8 below; a
// quad of lanes shares a row.
#pragma once

#include "base/bf16.h"
#include "kernels/common/fragments.cuh"
#include "kernels/hopper/barrier.cuh"

namespace perigee::hopper {

using namespace kernels;

/// A row of bf16 results in the usual order: the quad trades its pairs of columns for runs of eight.
template <int D>
__device__ __forceinline__ void write_row(bf16* row, float const (&o)[D / 2], int half, float factor, bool there) {
#pragma unroll
    for (int vector = 0; vector < D / 32; ++vector) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int const at = (vector * 4 + i) * 4 + half * 2;
            x[i] = pack(o[at] * factor, o[at + 1] * factor);
        }
        transpose_quad(x);
        if (there) reinterpret_cast<uint4*>(row + vector * 32)[threadIdx.x % 4] = {x[0], x[1], x[2], x[3]};
    }
}

/// A warpgroup's result [64, D] times `factor` as rows of bf16 that are `stride` numbers apart, as far as there are
/// `rows`; `add`: to what is there.
template <int D>
__device__ __forceinline__ void write_rows(bf16* to, int64_t stride, int rows, float const (&x)[D / 2], float factor,
                                           bool add) {
    uint32_t const thread = thread_anew(), lane = thread % 32;
    int const first = static_cast<int>(thread % 128 / 32 * 16 + lane / 4);
    auto* const at = reinterpret_cast<uint4*>(to + first * stride) + lane % 4;
    int64_t const other = stride;  // from a thread's first row to its second, in runs of eight
    uint4 before[2][D / 32] = {};
    if (add) {  // all loads first: a thread that waits for one has nothing else to do
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int group = 0; group < D / 32; ++group)
                if (first + half * 8 < rows) before[half][group] = at[half * other + group * 4];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int group = 0; group < D / 32; ++group) {
            uint4 const old = before[half][group];
            uint32_t word[4] = {old.x, old.y, old.z, old.w};
            if (add) transpose_quad(word);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float const* const mine = &x[16 * group + 4 * i + 2 * half];
                word[i] = pack(low(word[i]) + mine[0] * factor, high(word[i]) + mine[1] * factor);
            }
            transpose_quad(word);
            if (first + half * 8 < rows) at[half * other + group * 4] = {word[0], word[1], word[2], word[3]};
        }
}

/// Stores eight bf16, or adds eight bf16 or fp16 in the L2 cache. What one thread stores and adds at one address
/// happens in the order in which it says so.
__device__ __forceinline__ void store_eight(bf16* to, uint32_t const (&x)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
__device__ __forceinline__ void add_eight(bf16* to, uint32_t const (&x)[4]) {
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}
__device__ __forceinline__ void add_eight_halves(bf16* to, uint32_t const (&x)[4]) {
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}
__device__ __forceinline__ uint32_t pack_halves(float first, float second) {
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(second), "f"(first));
    return x;
}

/// A warpgroup's fp32 result [64, D] to memory, each of kThreads at its own address; `add`: in the L2 cache.
template <int D, int kThreads>
__device__ __forceinline__ void store_sums(float4* to, float const (&x)[D / 2], bool add = false) {
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
        float4* const at = to + i * kThreads;
        if (add)
            asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(x[4 * i]),
                         "f"(x[4 * i + 1]), "f"(x[4 * i + 2]), "f"(x[4 * i + 3])
                         : "memory");
        else
            *at = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
    }
}
template <int D, int kThreads>
__device__ __forceinline__ void add_sums(float (&x)[D / 2], float4 const* from) {
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
        float4 const y = from[i * kThreads];
        x[4 * i] += y.x, x[4 * i + 1] += y.y, x[4 * i + 2] += y.z, x[4 * i + 3] += y.w;
    }
}
}  // namespace perigee::hopper
