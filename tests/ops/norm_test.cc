#include "ops/op_check.h"

namespace perigee::testing {

namespace {

constexpr double kEps = 1e-5;

/// Inputs x, w; output y.
template <class Real>
OpResult plain(Ops& ops, Shape const& shape, std::vector<Values> const& inputs, Values const& dy) {
    Shape const row{shape[1]}, column{shape[0]};
    HostTensor<Real> x(shape, inputs[0]), w(row, inputs[1]), y(shape), rstd(column), d(shape, dy), dx(shape);
    Accumulator<Real> dw(row);
    ops.rmsnorm_forward({.y_TD = y.view(), .rstd_T = rstd.view(), .x_TD = x.view(), .w_D = w.view(), .eps = kEps});
    ops.rmsnorm_backward({.dx_TD = dx.view(),
                          .dw_accumulated_D = dw.view(),
                          .dy_TD = d.view(),
                          .x_TD = x.view(),
                          .w_D = w.view(),
                          .rstd_T = rstd.view()});
    return {.y = y.wide(), .gradients = {dx.wide(), dw.added()}};
}

/// Inputs x, residual, w; outputs y and the sum x + residual, whose own gradient joins through dresidual, in place.
template <class Real>
OpResult with_residual(Ops& ops, Shape const& shape, std::vector<Values> const& inputs, Values const& dy) {
    Shape const row{shape[1]}, column{shape[0]};
    HostTensor<Real> x(shape, inputs[0]), residual(shape, inputs[1]), w(row, inputs[2]);
    HostTensor<Real> y(shape), sum(shape), rstd(column), d(shape, slice(dy, 0, shape.size()));
    HostTensor<Real> dx(shape, slice(dy, shape.size(), shape.size()));
    Accumulator<Real> dw(row);
    ops.rmsnorm_forward({.y_TD = y.view(),
                         .rstd_T = rstd.view(),
                         .x_TD = x.view(),
                         .w_D = w.view(),
                         .eps = kEps,
                         .residual_TD = residual.view(),
                         .sum_TD = sum.view()});
    ops.rmsnorm_backward({.dx_TD = dx.view(),
                          .dw_accumulated_D = dw.view(),
                          .dy_TD = d.view(),
                          .x_TD = sum.view(),
                          .w_D = w.view(),
                          .rstd_T = rstd.view(),
                          .dresidual_TD = dx.view()});
    return {.y = joined({y.wide(), sum.wide()}), .gradients = {dx.wide(), dx.wide(), dw.added()}};
}

TEST(RmsNorm, MatchesItsDefinition) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 1);
    OpResult const r = plain<double>(*ops, {1, 2}, {{3, 4}, {1, 10}}, {1, 1});
    double const rstd = 1 / std::sqrt(12.5 + kEps);
    EXPECT_DOUBLE_EQ(r.y[0], 3 * rstd);
    EXPECT_DOUBLE_EQ(r.y[1], 40 * rstd);
}

TEST(RmsNorm, GradientsAndPrecision) {
    for (Shape const shape : {Shape{150, 37}, Shape{3, 256}}) {
        SCOPED_TRACE(shape.str());
        auto const run = [shape]<class Real>(Real) {
            return [shape](Ops& ops, std::vector<Values> const& x, Values const& dy) {
                return plain<Real>(ops, shape, x, dy);
            };
        };
        OpCheck{run(double()), run(float()), {shape.size(), shape[1]}, shape.size()}.run(7);
    }
}

TEST(RmsNorm, JoinsTheResidualStreamBothWays) {
    Shape const shape{70, 48};
    auto const run = [shape]<class Real>(Real) {
        return [shape](Ops& ops, std::vector<Values> const& x, Values const& dy) {
            return with_residual<Real>(ops, shape, x, dy);
        };
    };
    OpCheck{run(double()), run(float()), {shape.size(), shape.size(), shape[1]}, 2 * shape.size()}.run(8);
}

TEST(RmsNorm, ARowOfZerosStaysFinite) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    OpResult const r = plain<float>(*ops, {1, 4}, {Values(4, 0.0), Values(4, 1.0)}, Values(4, 1.0));
    EXPECT_EQ(r.y, Values(4, 0.0));
    for (double g : r.gradients[0]) EXPECT_TRUE(std::isfinite(g));
}

}  // namespace

}  // namespace perigee::testing
