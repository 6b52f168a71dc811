// Queries of heads that share a selection. A score is the sum over the heads, which is the score of the queries' sum.
// The tensor cores take this sum as two bf16 factors, the rounded sum and the rest: together 16 bits of every number.
// An infinite mean key may then score NaN instead of an infinity, because the second factor may be zero or have the
// other sign.
#pragma once

#include <cstdint>

#include "kernels/common/fragments.cuh"

namespace perigee::moba_gate {

/// Fragments of left factors, 16 columns a step: as hopper/product.cuh has them.
template <int kSteps>
class SumOfHeads {
  public:
    __device__ __forceinline__ void add(uint32_t const (&q)[kSteps][4]) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum_[step][2 * i] += __uint_as_float(q[step][i] << 16);
                sum_[step][2 * i + 1] += __uint_as_float(q[step][i] & 0xffff0000u);
            }
    }
    /// First all steps of what bf16 has of the sum, then those of the rest.
    __device__ __forceinline__ void split(uint32_t (&factors)[2 * kSteps][4]) const {
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float const a = sum_[step][2 * i], b = sum_[step][2 * i + 1];
                uint32_t const both = kernels::pack(a, b);
                factors[step][i] = both;
                factors[kSteps + step][i] =
                    kernels::pack(rest(a, __uint_as_float(both << 16)), rest(b, __uint_as_float(both & 0xffff0000u)));
            }
    }

  private:
    /// Infinities are in the first factor alone.
    __device__ __forceinline__ static float rest(float sum, float rounded) {
        return fabsf(rounded) == INFINITY ? 0 : sum - rounded;
    }

    float sum_[kSteps][8] = {};
};

}  // namespace perigee::moba_gate
