// How an operation is tested: one function runs its forward and backward in fp32 or fp64 on given inputs, and is held
// against finite differences, against the other precision, and against itself on another number of threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "ops/ops.h"
#include "support/finite_difference.h"
#include "support/random.h"

namespace perigee::testing {

using Values = std::vector<double>;

/// A host tensor that knows its shape.
template <class Real>
struct HostTensor {
    Shape shape;
    std::vector<Real> values;

    /// Poisoned: an output.
    explicit HostTensor(Shape extents) : shape(extents), values(poisoned<Real>(extents.size())) {}
    HostTensor(Shape extents, Values const& from) : shape(extents), values(from.begin(), from.end()) {}

    TensorView view() { return {values.data(), shape}; }
    Values wide() const { return Values(values.begin(), values.end()); }
};

/// A gradient that an operation adds to: starts at 2, which `added` takes off again.
template <class Real>
struct Accumulator : HostTensor<Real> {
    explicit Accumulator(Shape extents) : HostTensor<Real>(extents, Values(static_cast<size_t>(extents.size()), 2.0)) {}
    Values added() const {
        Values result = this->wide();
        for (double& x : result) x -= 2;
        return result;
    }
};

inline Values joined(std::vector<Values> const& parts) {
    Values all;
    for (Values const& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}
inline Values slice(Values const& values, int64_t begin, int64_t count) {
    return Values(values.begin() + begin, values.begin() + begin + count);
}

struct OpResult {
    Values y;                       ///< all outputs, one after the other
    std::vector<Values> gradients;  ///< of <y, dy>, one for each input
};
/// Runs an operation on `ops`, whose precision is Real.
template <class Real>
using OpRun = std::function<OpResult(Ops& ops, std::vector<Values> const& inputs, Values const& dy)>;

struct OpCheck {
    OpRun<double> wide;
    OpRun<float> narrow;
    std::vector<int64_t> input_sizes;
    int64_t output_size = 0;
    double stddev = 1.0;

    /// Inputs are rounded to fp32, so that both precisions start from the same numbers.
    std::vector<Values> inputs(uint64_t seed) const {
        std::vector<Values> all;
        for (int64_t size : input_sizes) {
            std::vector<float> const x = random_normal<float>(size, seed + 100 * (all.size() + 1), stddev);
            all.emplace_back(x.begin(), x.end());
        }
        return all;
    }
    Values output_gradient(uint64_t seed) const {
        std::vector<float> const dy = random_normal<float>(output_size, seed);
        return Values(dy.begin(), dy.end());
    }

    /// Every gradient within 1e-6 of central differences, every value of fp32 within 1e-5 of fp64, and the same bits
    /// in fp32 on one and on two threads.
    void run(uint64_t seed) const {
        auto const device = make_host_device();
        std::vector<Values> x = inputs(seed);
        Values const dy = output_gradient(seed);
        auto const ops = make_host_ops_f64(*device, 2);
        OpResult const exact = wide(*ops, x, dy);
        ASSERT_EQ(std::ssize(exact.y), output_size);
        ASSERT_EQ(exact.gradients.size(), x.size());
        auto const f = [&] {
            Values const y = wide(*ops, x, dy).y;
            double sum = 0;
            for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
            return sum;
        };
        for (size_t i = 0; i < x.size(); ++i)
            EXPECT_LT(gradient_error(f, x[i], exact.gradients[i], seed + i), 1e-6) << "input " << i;

        auto const two = make_host_ops(*device, 2);
        OpResult const rounded = narrow(*two, x, dy);
        EXPECT_LT(relative_error(rounded.y, exact.y), 1e-5);
        for (size_t i = 0; i < x.size(); ++i)
            EXPECT_LT(relative_error(rounded.gradients[i], exact.gradients[i]), 1e-5) << "input " << i;

        auto const one = make_host_ops(*device, 1);
        OpResult const again = narrow(*one, x, dy);
        EXPECT_EQ(again.y, rounded.y);
        EXPECT_EQ(again.gradients, rounded.gradients);
    }
};

}  // namespace perigee::testing
