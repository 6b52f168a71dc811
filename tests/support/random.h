// Fresh but reproducible random inputs for tests: values depend on the seed a test states.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.h"

namespace perigee::testing {

/// `count` standard normal values times `stddev`.
template <class Real>
std::vector<Real> random_normal(int64_t count, uint64_t seed, double stddev = 1.0) {
    Philox const random(seed, Purpose::mock_data);
    std::vector<Real> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Real>(stddev * random.normal(i));
    return values;
}

/// Outputs start as NaN, so that an element nobody wrote fails every comparison.
template <class Real>
std::vector<Real> poisoned(int64_t count) {
    return std::vector<Real>(static_cast<size_t>(count), std::numeric_limits<Real>::quiet_NaN());
}

/// ||a - b|| / ||b||; NaN or a size mismatch gives infinity. Against an all-zero b it is ||a||.
template <class A, class B>
double relative_error(std::vector<A> const& a, std::vector<B> const& b) {
    if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        double const d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
        difference += d * d;
        norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    }
    double const error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

}  // namespace perigee::testing
