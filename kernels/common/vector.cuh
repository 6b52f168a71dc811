// Runs of N values between memory and fp32 registers. N = 8 moves 16 bytes of bf16 at a time and needs that alignment;
// N = 1 works everywhere.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "base/bf16.h"

namespace perigee::kernels {

/// N values as they lie in memory; one or more 16-byte accesses where N allows it.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Run {
    T values[N];
};

template <int N, class T>
__device__ __forceinline__ Run<T, N> load_run(T const* from) {
    return *reinterpret_cast<Run<T, N> const*>(from);
}
template <int N, class T>
__device__ __forceinline__ void store_run(T* to, Run<T, N> const& run) {
    *reinterpret_cast<Run<T, N>*>(to) = run;
}

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }

template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

template <class T, int N>
__device__ __forceinline__ void unpack(float (&to)[N], Run<T, N> const& from) {
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = widen(from.values[j]);
}
/// One instruction for each value.
template <>
__device__ __forceinline__ void unpack<bf16, 8>(float (&to)[8], Run<bf16, 8> const& from) {
    uint4 const words = reinterpret_cast<uint4 const&>(from);
    uint32_t const pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        to[2 * j] = __uint_as_float(pairs[j] << 16);
        to[2 * j + 1] = __uint_as_float(pairs[j] & 0xffff0000);
    }
}
template <class T, int N>
__device__ __forceinline__ Run<T, N> pack(float const (&from)[N]) {
    Run<T, N> run;
#pragma unroll
    for (int j = 0; j < N; ++j) run.values[j] = narrow<T>(from[j]);
    return run;
}
/// Two values per conversion instruction.
template <>
__device__ __forceinline__ Run<bf16, 8> pack<bf16, 8>(float const (&from)[8]) {
    Run<bf16, 8> run;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        __nv_bfloat162 const pair = __floats2bfloat162_rn(from[j], from[j + 1]);
        run.values[j] = {__bfloat16_as_ushort(pair.x)};
        run.values[j + 1] = {__bfloat16_as_ushort(pair.y)};
    }
    return run;
}

template <int N, class T>
__device__ __forceinline__ void load(float (&to)[N], T const* from) {
    unpack(to, load_run<N>(from));
}
template <int N, class T>
__device__ __forceinline__ void store(T* to, float const (&from)[N]) {
    store_run<N>(to, pack<T>(from));
}

}  // namespace perigee::kernels
