// Exponentials that vectorise: a branch-free polynomial in fp32, the library's exp in fp64.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace perigee::host {

/// exp(x) within about 1e-7 relative; 0 below -87.3 (-inf included), +inf above 88.7, NaN for NaN.
/// Cody-Waite reduction to [-ln 2 / 2, ln 2 / 2] and a degree-6 polynomial (Cephes' expf coefficients).
inline float exp_approx(float x) {
    float const clamped = x < -87.33654f ? -87.33654f : (x > 88.3762626f ? 88.3762626f : x);
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves that integer in the low bits.
    float const shifted = clamped * 1.44269504088896341f + 12582912.0f;
    float const n = shifted - 12582912.0f;
    float const r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    float const power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);
    float const y = p * power;
    float const low = x < -87.33654f ? 0.0f : y;
    return x > 88.3762626f ? INFINITY : low;
}
inline double exp_approx(double x) { return std::exp(x); }

}  // namespace perigee::host
