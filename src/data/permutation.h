// A pseudo-random order of 0 ... n - 1 that is never stored: each place is computed on its own in constant time, so the
// order of any number of samples costs no memory and no start-up.
// A balanced Feistel network over the next even power of two, walked until it lands inside (cycle walking): Black and
// Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace perigee {

class Permutation {
  public:
    /// A bijection of {0, ..., n - 1}, n > 0, chosen by the key. Part of the reproducibility promise: the same key
    /// gives the same order for ever.
    Permutation(uint64_t n, Philox key);

    /// Where `index` < n goes.
    uint64_t operator()(uint64_t index) const;

  private:
    uint64_t encrypt(uint64_t value) const;

    uint64_t n_;
    Philox key_;
    int half_bits_;
};

}  // namespace perigee
