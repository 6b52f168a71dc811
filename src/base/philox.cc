#include "base/philox.h"

#include <cmath>
#include <numbers>

namespace perigee {

double Philox::normal(uint64_t index) const {
    auto const b = block(index);
    uint64_t const first = b[0] | (static_cast<uint64_t>(b[1]) << 32);
    uint64_t const second = b[2] | (static_cast<uint64_t>(b[3]) << 32);
    double const u = (static_cast<double>(first >> 11) + 1.0) * 0x1.0p-53;  // (0, 1]: the logarithm stays finite
    double const v = static_cast<double>(second >> 11) * 0x1.0p-53;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace perigee
