// Key convolution: gradients against finite differences, precision, the formula, and isolation of documents.
#include "ops/op_check.h"

namespace perigee::testing {

namespace {

/// Keys are columns [first, first + channels) of rows of `width` elements.
struct Keys {
    int64_t tokens, channels, taps, first = 3;
    int64_t width() const { return first + channels + 2; }
    Shape rows() const { return {tokens, channels}; }
    Shape weights() const { return {channels, taps}; }
};

/// Positions in documents of 1, 2 and 6 tokens and one with the rest.
std::vector<int32_t> key_positions(int64_t tokens) {
    std::vector<int32_t> p;
    for (int64_t t = 0; t < tokens; ++t)
        p.push_back(static_cast<int32_t>(t < 1 ? t : t < 3 ? t - 1 : t < 9 ? t - 3 : t - 9));
    return p;
}

template <class Real>
Values columns(HostTensor<Real> const& x, Keys const& n) {
    Values found;
    for (int64_t i = 0; i < x.shape.size(); ++i) {
        int64_t const column = i % n.width() - n.first;
        bool const ours = column >= 0 && column < n.channels;
        if (ours) found.push_back(static_cast<double>(x.values[static_cast<size_t>(i)]));
        EXPECT_EQ(std::isnan(x.values[static_cast<size_t>(i)]), !ours) << "column " << column;
    }
    return found;
}

/// Inputs x and w, output y.
template <class Real>
OpResult key_conv(Ops& ops, Keys const& n, std::vector<Values> const& inputs, Values const& dy) {
    std::vector<int32_t> place = key_positions(n.tokens);
    ConstView const positions_T(place.data(), {n.tokens});
    HostTensor<Real> x(n.rows(), inputs[0]), w(n.weights(), inputs[1]), grad(n.rows(), dy);
    HostTensor<Real> y({n.tokens, n.width()}), dx({n.tokens, n.width()});
    Accumulator<Real> dw(n.weights());
    ops.key_conv_forward(
        {.y_TX = y.view(), .x_TC = x.view(), .w_CW = w.view(), .positions_T = positions_T, .first = n.first});
    ops.key_conv_backward({.dx_TX = dx.view(),
                           .dw_accumulated_CW = dw.view(),
                           .dy_TC = grad.view(),
                           .x_TC = x.view(),
                           .w_CW = w.view(),
                           .positions_T = positions_T,
                           .first = n.first});
    return {.y = columns(y, n), .gradients = {columns(dx, n), dw.added()}};
}

TEST(KeyConv, GradientsAndPrecision) {
    for (int64_t const taps : {1, 3, 5}) {
        Keys const n{.tokens = 70, .channels = 6, .taps = taps};
        auto const run = [=]<class Real>(Real) {
            return
                [=](Ops& ops, std::vector<Values> const& x, Values const& dy) { return key_conv<Real>(ops, n, x, dy); };
        };
        OpCheck{run(double()), run(float()), {n.rows().size(), n.weights().size()}, n.rows().size()}.run(31);
    }
}

TEST(KeyConv, IsItsFormula) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 1);
    Keys const n{.tokens = 20, .channels = 2, .taps = 3};
    Values const x = random_normal<double>(40, 3), w = random_normal<double>(6, 4);
    Values const y = key_conv<double>(*ops, n, {x, w}, Values(40, 0.0)).y;
    auto const p = key_positions(20);
    for (size_t t = 0; t < 20; ++t)
        for (size_t c = 0; c < 2; ++c) {
            double s = 0;
            for (size_t l = 0; l < 3; ++l)
                if (static_cast<int32_t>(l) <= p[t]) s += w[3 * c + l] * x[2 * (t - l) + c];
            EXPECT_NEAR(y[2 * t + c], x[2 * t + c] + s / (1 + std::exp(-s)), 1e-14) << t;
        }
}

TEST(KeyConv, ZeroWeightsChangeNothingAndHaveAGradient) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 1);
    Keys const n{.tokens = 30, .channels = 4, .taps = 5};
    Values const x = random_normal<double>(120, 5), dy = random_normal<double>(120, 6);
    OpResult const r = key_conv<double>(*ops, n, {x, Values(20, 0.0)}, dy);
    EXPECT_EQ(r.y, x);
    EXPECT_EQ(r.gradients[0], dy);
    for (double const slope : r.gradients[1]) EXPECT_NE(slope, 0);
}

TEST(KeyConv, ADocumentDoesNotSeeItsNeighbours) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 1);
    Keys const n{.tokens = 20, .channels = 2, .taps = 5};
    Values x = random_normal<double>(40, 7), dy = random_normal<double>(40, 8);
    Values const w = random_normal<double>(10, 9);
    OpResult const before = key_conv<double>(*ops, n, {x, w}, dy);
    for (size_t i = 6; i < 18; ++i) x[i] += 1, dy[i] -= 1;  // the document with tokens 3 to 8
    OpResult const after = key_conv<double>(*ops, n, {x, w}, dy);
    for (auto const& [a, b] : {std::pair(before.y, after.y), {before.gradients[0], after.gradients[0]}}) {
        EXPECT_EQ(slice(a, 0, 6), slice(b, 0, 6));
        EXPECT_NE(slice(a, 6, 12), slice(b, 6, 12));
        EXPECT_EQ(slice(a, 18, 22), slice(b, 18, 22));
    }
}

TEST(KeyConv, WrongShapesAreNamed) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    std::vector<int32_t> place = key_positions(4);
    HostTensor<float> y({4, 8}), x({4, 6}), w({6, 3}), wide({6, 7});
    KeyConvForward const good{
        .y_TX = y.view(), .x_TC = x.view(), .w_CW = w.view(), .positions_T = ConstView(place.data(), {4}), .first = 2};
    EXPECT_NO_THROW(ops->key_conv_forward(good));
    KeyConvForward bad = good;
    bad.first = 3;
    EXPECT_THROW(ops->key_conv_forward(bad), Error);
    bad = good, bad.w_CW = wide.view();
    EXPECT_THROW(ops->key_conv_forward(bad), Error);
    bad = good, bad.positions_T = ConstView(place.data(), {3});
    EXPECT_THROW(ops->key_conv_forward(bad), Error);
}

}  // namespace

}  // namespace perigee::testing
