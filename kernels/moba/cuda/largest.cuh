// The largest absolute value of bf16 tensors, as its bits: those of numbers without a sign are in the order of the
// numbers, infinity and then NaN above all.
#pragma once

#include "kernels/moba/cuda/mma.cuh"

namespace perigee::moba {

/// Of two columns each: the larger of `largest` and what eight numbers hold.
__device__ __forceinline__ uint32_t larger(uint32_t largest, uint4 const& eight) {
    constexpr uint32_t kNoSigns = 0x7fff7fff;
    uint32_t const first = __vmaxu2(eight.x & kNoSigns, eight.y & kNoSigns);
    uint32_t const second = __vmaxu2(eight.z & kNoSigns, eight.w & kNoSigns);
    return __vmaxu2(largest, __vmaxu2(first, second));
}

/// Makes *to the larger of itself and what the block's threads found. All of them call, once in a kernel.
__device__ __forceinline__ void note_largest(uint32_t* to, uint32_t found) {
    __shared__ uint32_t of_warps[32];
    found = __reduce_max_sync(kAllLanes, max(found & 0xffff, found >> 16));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = found;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    found = threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0;
    found = __reduce_max_sync(kAllLanes, found);
    if (threadIdx.x == 0 && found > *to) atomicMax(to, found);  // few do: a block that reads an old number asks in vain
}

}  // namespace perigee::moba
