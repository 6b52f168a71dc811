// Philox4x32-10, a counter-based random generator: value = f(key, counter), no state, so a number depends only on what
// it is for and never on who asks first or how the work is laid out.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace perigee {

/// What a random number is for. Part of the key, so two purposes never share numbers. Values are part of the
/// reproducibility promise: append, never renumber.
enum class Purpose : uint32_t {
    init = 1,
    sample_order = 2,
    blend = 3,
    mock_data = 4,
    generate = 5,
    rounding = 6,
    document_order = 7,
    block_selection = 8,
    evaluation = 9,
    dropout = 10
};

/// FNV-1a of a name: the stable way to key random numbers by a tensor's or data set's global name.
constexpr uint64_t hash_name(std::string_view name) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    return h;
}

class Philox {
  public:
    /// `stream` tells tensors, data sets or epochs of one purpose apart.
    constexpr Philox(uint64_t seed, Purpose purpose, uint64_t stream = 0) {
        // Fold purpose and stream into the key through one Philox call, so that related inputs give unrelated keys.
        auto const k = rounds({static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32),
                               static_cast<uint32_t>(purpose), 0x5045524Bu},
                              {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
        key_ = {k[0], k[1]};
        salt_ = {k[2], k[3]};
    }

    /// Four independent 32-bit numbers for this index.
    constexpr std::array<uint32_t, 4> block(uint64_t index) const {
        return rounds({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), salt_[0], salt_[1]}, key_);
    }
    constexpr uint64_t u64(uint64_t index) const {
        auto const b = block(index);
        return b[0] | (static_cast<uint64_t>(b[1]) << 32);
    }
    /// Uniform in [0, 1) with 53 bits.
    constexpr double uniform(uint64_t index) const { return static_cast<double>(u64(index) >> 11) * 0x1.0p-53; }
    /// Uniform in {0, ..., n - 1}, n > 0; the bias of the multiply-shift is below n / 2^64.
    constexpr uint64_t below(uint64_t index, uint64_t n) const {
        return static_cast<uint64_t>((static_cast<unsigned __int128>(u64(index)) * n) >> 64);
    }
    /// Standard normal (Box-Muller).
    double normal(uint64_t index) const;

  private:
    static constexpr std::array<uint32_t, 4> rounds(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
        for (int round = 0; round < 10; ++round) {
            uint64_t const p0 = uint64_t{0xD2511F53u} * c[0];
            uint64_t const p1 = uint64_t{0xCD9E8D57u} * c[2];
            c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
                 static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
            k[0] += 0x9E3779B9u;
            k[1] += 0xBB67AE85u;
        }
        return c;
    }

    std::array<uint32_t, 2> key_{};
    std::array<uint32_t, 2> salt_{};
};

}  // namespace perigee
