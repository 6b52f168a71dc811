#include "hf/base_fingerprint.h"

#include <fmt/format.h>

#include "base/philox.h"

namespace perigee {

void BaseFingerprint::add(std::string const& name, Shape const& shape, int64_t first, std::span<bf16 const> values) {
    uint64_t const begin = hash_name(name + shape.str()) + static_cast<uint64_t>(first);
    uint64_t sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        uint64_t x = (begin + i) * 0x9E3779B97F4A7C15ull + values[i].bits;
        x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ull;
        sum += x ^ x >> 32;
    }
    sum_ += sum;
}

std::string BaseFingerprint::text(uint64_t sum) { return fmt::format("{:016x}", sum); }

}  // namespace perigee
