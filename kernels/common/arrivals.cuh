// The last of some blocks to arrive at a place: what the others have written before is its to read, so that it can
// finish what they began without another launch.
#pragma once

namespace perigee::kernels {

/// Called by all threads of each of `blocks` blocks; true in those of the last one. `arrived` is zero before the first
/// and after the last.
__device__ inline bool last_to_arrive(unsigned* arrived, unsigned blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();  // also: the answer of an earlier call has been read
    if (threadIdx.x == 0) last = atomicInc(arrived, blocks - 1) == blocks - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

}  // namespace perigee::kernels
