// Gradients against central differences of fourth order, in fp64.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "support/random.h"

namespace perigee::testing {

/// The derivative of f(s) at 0.
inline double derivative(std::function<double(double)> const& f, double h) {
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
}

/// Largest error of `gradient` at x against differences of f: along two random directions relative to the norm of the
/// gradient, and for single `elements` relative to their root mean square. `f` reads x, which is restored.
/// A gradient of zeros is compared absolutely.
inline double gradient_error(std::function<double()> const& f, std::vector<double>& x,
                             std::vector<double> const& gradient, uint64_t seed, double h = 1e-3, int elements = 12) {
    if (x.size() != gradient.size()) return std::numeric_limits<double>::infinity();
    auto const size = static_cast<int64_t>(x.size());
    std::vector<double> const origin = x;
    double squares = 0;
    for (double g : gradient) squares += g * g;
    double const norm = squares > 0 ? std::sqrt(squares) : 1;
    double worst = 0;
    auto const note = [&worst](double error) {
        worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    };
    for (uint64_t direction = 0; direction < 2; ++direction) {
        std::vector<double> const d = random_normal<double>(size, seed + direction);
        double expected = 0;
        for (size_t i = 0; i < d.size(); ++i) expected += gradient[i] * d[i];
        double const slope = derivative(
            [&](double s) {
                for (size_t i = 0; i < d.size(); ++i) x[i] = origin[i] + s * d[i];
                return f();
            },
            h);
        note(std::abs(slope - expected) / norm);
        x = origin;
    }
    Philox const random(seed, Purpose::sample_order);
    for (int pick = 0; pick < elements; ++pick) {
        auto const i = static_cast<size_t>(random.below(static_cast<uint64_t>(pick), x.size()));
        double const slope = derivative(
            [&](double s) {
                x[i] = origin[i] + s;
                return f();
            },
            h);
        note(std::abs(slope - gradient[i]) / (norm / std::sqrt(static_cast<double>(size))));
        x = origin;
    }
    return worst;
}

}  // namespace perigee::testing
