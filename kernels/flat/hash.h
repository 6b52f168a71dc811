// The hash of a tensor's bits, the same on every device: the sum over the elements of a mix of place and bits, modulo
// 2^64. The order of additions does not matter, and a change of any one element changes it.
#pragma once

#include <cstdint>

namespace perigee::kernels {

/// A bijection of 64-bit numbers that spreads every bit: the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
constexpr uint64_t spread(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/// Of element `index`, whose bits are the low ones of `bits`.
constexpr uint64_t hash_of(uint64_t index, uint64_t bits) { return spread((index + 1) * 0x9e3779b97f4a7c15u ^ bits); }

}  // namespace perigee::kernels
