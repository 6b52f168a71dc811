// Sums and maxima over lanes and blocks, in an order that depends on nothing but the number of threads. Every
// participating thread receives the result.
#pragma once

namespace perigee::kernels {

constexpr unsigned kAllLanes = 0xffffffffu;

/// What kLanes neighbours have, combined; all of them receive it. kLanes is a power of two.
template <int kLanes, class T, class F>
__device__ __forceinline__ T across_lanes(T x, F combine) {
#pragma unroll
    for (int other = 1; other < kLanes; other *= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, other));
    return x;
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
    return x;
}

/// One value of each warp to all threads: lane i of every warp receives that of warp i, `rest` where there is none.
/// Blocks are one-dimensional, of whole warps.
template <class T>
__device__ __forceinline__ T across_warps(T x, T rest) {
    __shared__ T of_warp[32];
    unsigned const lane = threadIdx.x % 32;
    __syncthreads();  // the values of an earlier call have been read
    if (lane == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    return lane < blockDim.x / 32 ? of_warp[lane] : rest;
}

template <class T>
__device__ __forceinline__ T block_sum(T x) {
    x = warp_sum(x);
    return blockDim.x == 32 ? x : warp_sum(across_warps(x, T(0)));
}

__device__ __forceinline__ float block_max(float x) {
    x = warp_max(x);
    return blockDim.x == 32 ? x : warp_max(across_warps(x, -INFINITY));
}

}  // namespace perigee::kernels
