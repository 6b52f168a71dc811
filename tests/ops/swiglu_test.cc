#include "ops/host/fast_math.h"
#include "ops/op_check.h"

namespace perigee::testing {

namespace {

/// In place, as the model uses it: the gradient lands in the projection's own memory.
template <class Real>
OpResult swiglu(Ops& ops, int64_t tokens, int64_t width, std::vector<Values> const& inputs, Values const& dy) {
    HostTensor<Real> x({tokens, 2 * width}, inputs[0]), y({tokens, width}), d({tokens, width}, dy);
    ops.swiglu_forward(y.view(), x.view());
    ops.swiglu_backward({x.view(), d.view(), x.view()});
    return {.y = y.wide(), .gradients = {x.wide()}};
}

TEST(Swiglu, GradientsAndPrecision) {
    auto const run = []<class Real>(Real) {
        return
            [](Ops& ops, std::vector<Values> const& x, Values const& dy) { return swiglu<Real>(ops, 90, 53, x, dy); };
    };
    OpCheck{run(double()), run(float()), {90 * 2 * 53}, 90 * 53, 2.0}.run(31);
}

TEST(Swiglu, GatesTheSecondHalfByTheFirst) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 1);
    OpResult const r = swiglu<double>(*ops, 1, 2, {{1.0, -2.0, 3.0, 5.0}}, {1, 1});
    EXPECT_DOUBLE_EQ(r.y[0], 3.0 / (1 + std::exp(-1.0)));
    EXPECT_DOUBLE_EQ(r.y[1], -10.0 / (1 + std::exp(2.0)));
}

TEST(Swiglu, LargeGatesNeitherOverflowNorTurnToNaN) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    OpResult const r = swiglu<float>(*ops, 1, 4, {{-1000, 1000, -90, 90, 2, 2, 2, 2}}, Values(4, 1.0));
    EXPECT_EQ(r.y[0], 0);
    EXPECT_EQ(r.y[1], 2000);
    EXPECT_NEAR(r.y[2], 0, 1e-30);
    EXPECT_EQ(r.y[3], 180);
    for (double g : r.gradients[0]) EXPECT_TRUE(std::isfinite(g));
}

TEST(ExpApprox, IsAccurateOverItsWholeRange) {
    double worst = 0;
    for (float x = -87.3f; x < 88.3f; x += 0.00137f) {
        double const exact = std::exp(static_cast<double>(x));
        double const error = std::abs(host::exp_approx(x) - exact) / exact;
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
    EXPECT_LT(worst, 1.5e-7);
    EXPECT_EQ(host::exp_approx(0.0f), 1.0f);
}

TEST(ExpApprox, HandlesTheEndsOfTheRange) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(host::exp_approx(-kInfinity), 0.0f);
    EXPECT_EQ(host::exp_approx(-1000.0f), 0.0f);
    EXPECT_EQ(host::exp_approx(kInfinity), kInfinity);
    EXPECT_EQ(host::exp_approx(1000.0f), kInfinity);
    EXPECT_TRUE(std::isnan(host::exp_approx(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace

}  // namespace perigee::testing
