// bfloat16 on the host: storage and round-to-nearest-even conversion, nothing else.
#pragma once

#include <bit>
#include <cstdint>

namespace perigee {

struct bf16 {
    uint16_t bits = 0;
};

inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline bf16 to_bf16(float x) {
    uint32_t const u = std::bit_cast<uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x0040u)};  // keep NaN a quiet NaN
    return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace perigee
