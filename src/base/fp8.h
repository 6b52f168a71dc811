// E4M3, the 8-bit floating-point format of OCP's "OFP8" (2023): 4 exponent bits, 3 mantissa bits, no infinity, largest
// value 448. Also the power-of-two scale of a tile. Exact, and identical on host and device.
#pragma once

#include <bit>
#include <cstdint>

namespace perigee {

struct e4m3 {
    uint8_t bits = 0;
};
inline constexpr uint8_t kE4m3Nan = 0x7f, kE4m3Largest = 0x7e;  ///< 448

inline float to_float(e4m3 x) {
    uint32_t const sign = static_cast<uint32_t>(x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
    if (magnitude == kE4m3Nan) return std::bit_cast<float>(sign | 0x7fc00000u);
    uint32_t const exponent = magnitude >> 3, fraction = magnitude & 7u;
    if (exponent == 0) {
        float const small = static_cast<float>(fraction) * 0x1p-9f;
        return sign == 0 ? small : -small;
    }
    return std::bit_cast<float>(sign | (exponent + 120) << 23 | fraction << 20);
}

/// What is counted of a quantised matrix: kQuantCounts numbers in f64, each the sum over matrices but for the first.
enum QuantCount : uint8_t {
    kLargest,     ///< magnitude of x
    kSquares,     ///< sum of x^2
    kElements,    ///< of x
    kUnderflows,  ///< x is not zero and its quantised value is
    kTopValues,   ///< quantised to +-448, the largest E4M3 value; no scaled value is above it
    kQuantCounts
};

/// Rounds to nearest, ties to even. Finite values beyond 448 saturate; infinity becomes NaN.
inline e4m3 to_e4m3(float x) {
    uint32_t const u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu;
    auto const sign = static_cast<uint8_t>(u >> 24 & 0x80u);
    auto const signed_bits = [sign](uint32_t bits) { return e4m3{static_cast<uint8_t>(sign | bits)}; };
    if (magnitude >= 0x7f800000u) return signed_bits(kE4m3Nan);
    if (magnitude < 0x3c800000u) {  // subnormal, below 2^-6: a multiple of 2^-9
        // Adding 2^14 leaves that multiple, rounded, in the lowest mantissa bits.
        uint32_t const sum = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f);
        return signed_bits(sum & 0xfu);
    }
    uint32_t const rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
    uint32_t const bits = rounded - (120u << 3);
    return signed_bits(bits < kE4m3Largest ? bits : kE4m3Largest);
}

/// Whether a tile is finite, from its largest magnitude as fp32 bits.
constexpr bool is_finite_amax(uint32_t amax_bits) { return amax_bits < 0x7f800000u; }

/// The scale of a tile as fp32 bits: the smallest power of two, at least 2^-126, that divides the tile's largest
/// magnitude to 448 or below. 1 if the tile is all zero or not finite.
constexpr uint32_t scale_bits(uint32_t amax_bits) {
    if (amax_bits == 0 || !is_finite_amax(amax_bits)) return 127u << 23;
    uint32_t const exponent = amax_bits >> 23, above = (amax_bits & 0x7fffffu) > 0x600000u ? 1 : 0;  // 448 = 1.75 2^8
    return (exponent + above > 9 ? exponent + above - 8 : 1u) << 23;
}
/// 1 / scale as fp32 bits.
constexpr uint32_t inverse_scale_bits(uint32_t scale) { return (254u << 23) - scale; }

}  // namespace perigee
