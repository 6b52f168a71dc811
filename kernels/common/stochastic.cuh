// Stochastic rounding from fp32 to bf16: rounds up with a probability equal to the fraction cut off.
#pragma once

#include "kernels/common/vector.cuh"

namespace perigee::kernels {

/// `added`: 16 random bits, added to the low half of x. Non-finite values are rounded to nearest.
__device__ __forceinline__ bf16 round_up_or_down(float x, uint32_t added) {
    uint32_t const bits = __float_as_uint(x);
    bool const finite = (bits & 0x7f800000u) != 0x7f800000u;
    return finite ? bf16{static_cast<uint16_t>((bits + added) >> 16)} : narrow<bf16>(x);
}

}  // namespace perigee::kernels
