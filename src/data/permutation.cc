#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace perigee {

namespace {
constexpr uint64_t kRounds = 8;
constexpr int kSmallestHalf = 3;  // halves of one or two bits mix too little to tell keys apart
}  // namespace

Permutation::Permutation(uint64_t n, Philox key) : n_(n), key_(key) {
    PERIGEE_CHECK(n > 0, "a permutation of nothing");
    int const bits = static_cast<int>(std::bit_width(n - 1));
    half_bits_ = std::max(kSmallestHalf, (bits + 1) / 2);
}

uint64_t Permutation::encrypt(uint64_t value) const {
    uint64_t const mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
        uint64_t const mixed = left ^ (key_.block((round << 32) | right)[0] & mask);
        left = right;
        right = mixed;
    }
    return (left << half_bits_) | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
    PERIGEE_CHECK(index < n_, "place {} of a permutation of {}", index, n_);
    // The network permutes a domain at most four times as large (64 at least); following its cycle until it re-enters
    // the wanted part is a permutation of that part.
    uint64_t value = encrypt(index);
    while (value >= n_) value = encrypt(value);
    return value;
}

}  // namespace perigee
