// Running sums over a thread block, in whole numbers.
#pragma once

#include <cstdint>

#include "kernels/common/reduce.cuh"

namespace perigee::kernels {

inline constexpr int kScanThreads = 1024;

__device__ __forceinline__ int32_t warp_inclusive_scan(int32_t x, int lane) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        int32_t const before = __shfl_up_sync(kAllLanes, x, distance);
        if (lane >= distance) x += before;
    }
    return x;
}

/// out[i] = value(0) + ... + value(i - 1) for i = 0 ... count, by one block of kScanThreads threads. All of them call.
template <class Value>
__device__ void exclusive_scan(int count, Value value, int32_t* out) {
    __shared__ int32_t of_warp[32];
    int const thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    int32_t carry = 0;
    for (int begin = 0; begin < count; begin += kScanThreads) {
        int const i = begin + thread;
        int32_t const x = i < count ? value(i) : 0;
        int32_t const in_warp = warp_inclusive_scan(x, lane);
        if (lane == 31) of_warp[warp] = in_warp;
        __syncthreads();
        int32_t const warps = warp_inclusive_scan(of_warp[lane], lane);
        int32_t const before = __shfl_sync(kAllLanes, warps, warp > 0 ? warp - 1 : 0);
        int32_t const total = __shfl_sync(kAllLanes, warps, 31);
        if (i < count) out[i] = carry + (warp > 0 ? before : 0) + in_warp - x;
        carry += total;
        __syncthreads();  // of_warp has been read
    }
    if (thread == 0) out[count] = carry;
}

}  // namespace perigee::kernels
