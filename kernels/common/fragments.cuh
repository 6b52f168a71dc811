// Numbers in registers as tensor cores take and leave them: pairs of bf16, rows shared by a quad of lanes, and the
// functions of a softmax over such rows.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/common/reduce.cuh"

namespace perigee::kernels {

/// Four 8 x 8 matrices of bf16 from shared memory; lane l gives the address of row l % 8 of matrix l / 8. PTX ISA,
/// "ldmatrix".
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}

/// Two numbers rounded to bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ __forceinline__ float low(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }
/// sum += eight bf16.
__device__ __forceinline__ void add_to(float (&sum)[8], uint4 const& x) {
    sum[0] += low(x.x), sum[1] += high(x.x), sum[2] += low(x.y), sum[3] += high(x.y);
    sum[4] += low(x.z), sum[5] += high(x.z), sum[6] += low(x.w), sum[7] += high(x.w);
}

/// Columns [16 step, 16 step + 16) of a result, rounded, as left factor of the next product.
template <int kCount>
__device__ __forceinline__ void to_left(uint32_t (&a)[4], float const (&d)[kCount], int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack(d[8 * step + 2 * i], d[8 * step + 2 * i + 1]);
}

/// All columns.
template <int kSteps, int kCount>
__device__ __forceinline__ void to_left(uint32_t (&a)[kSteps][4], float const (&d)[kCount]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) to_left(a[step], d, step);
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
}
/// Four lanes (of a quad) with four words each: lane l's word i becomes lane i's word l.
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4]) {
    int const lane = threadIdx.x % 4;
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if ((i & distance) == 0) {
                bool const upper = (lane & distance) != 0;
                uint32_t const got = __shfl_xor_sync(kAllLanes, upper ? x[i] : x[i + distance], distance);
                (upper ? x[i] : x[i + distance]) = got;
            }
}

inline constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// The base of exponents: the maximum, or 0 where there are only scores of -infinity.
__device__ __forceinline__ float finite_base(float most) { return most == -INFINITY ? 0 : most; }
/// What the exponents of a row's final weights are counted from, in base 2: infinity for a row of nothing but scores of
/// -infinity, whose weights are zeros then.
__device__ __forceinline__ float base_of_weights(float lse) { return lse == -INFINITY ? INFINITY : lse * kLog2e; }
/// A row that has nothing but scores of -infinity has an empty sum, and zeros as its result.
__device__ __forceinline__ float inverse_of_sum(float sum) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum));
    return sum == 0 ? 0 : inverse;
}

}  // namespace perigee::kernels
