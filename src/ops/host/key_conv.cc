#include <algorithm>
#include <array>
#include <cmath>

#include "ops/host/functions.h"
#include "ops/host/parallel.h"

namespace perigee::host {

namespace {

/// Inputs of both passes. At token t the convolution covers reach(t) keys, the token's own included.
template <class Real>
struct Keys {
    Real const* x;
    Real const* w;
    int32_t const* positions;
    int64_t tokens, channels, taps;

    template <class Args>
    explicit Keys(Args const& args)
        : x(args.x_TC.template as<Real>()),
          w(args.w_CW.template as<Real>()),
          positions(args.positions_T.template as<int32_t>()),
          tokens(args.x_TC[0]),
          channels(args.x_TC[1]),
          taps(args.w_CW[1]) {}

    int64_t reach(int64_t t) const { return std::min<int64_t>(taps, positions[t] + 1); }
    Real sum(int64_t t, int64_t c) const {
        Real s = 0;
        for (int64_t l = 0; l < reach(t); ++l) s += w[c * taps + l] * x[(t - l) * channels + c];
        return s;
    }
};

template <class Real>
Real sigmoid(Real s) {
    return 1 / (1 + std::exp(-s));
}

/// The derivative of s sigmoid(s).
template <class Real>
Real silu_slope(Real s) {
    Real const p = sigmoid(s);
    return p * (1 + s * (1 - p));
}

}  // namespace

template <class Real>
void key_conv_forward(KeyConvForward const& args) {
    Keys<Real> const keys(args);
    int64_t const width = args.y_TX[1];
    Real* const y = args.y_TX.as<Real>() + args.first;
    parallel_ranges(keys.tokens, row_grain(8 * keys.channels), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
            for (int64_t c = 0; c < keys.channels; ++c) {
                Real const s = keys.sum(t, c);
                y[t * width + c] = keys.x[t * keys.channels + c] + s * sigmoid(s);
            }
    });
}

/// With ds = dy silu'(s): dx[t] = dy[t] + sum of w[l] ds[t + l], dw[l] = sum of ds[t] x[t - l].
template <class Real>
void key_conv_backward(KeyConvBackward const& args, std::vector<Real>& scratch) {
    Keys<Real> const keys(args);
    int64_t const T = keys.tokens, C = keys.channels, W = keys.taps, width = args.dx_TX[1];
    Real const* const dy = args.dy_TC.as<Real>();
    Real* const dx = args.dx_TX.as<Real>() + args.first;
    auto const slope = [&](int64_t t, int64_t c) { return dy[t * C + c] * silu_slope(keys.sum(t, c)); };
    auto const rows = [&](int64_t begin, int64_t end, Real* dw) {
        for (int64_t c = 0; c < C; ++c) {
            std::array<Real, kWidestKeyConv> ds = {};  // of tokens t to t + W - 1, as a ring buffer
            for (int64_t t = std::min(T, end + W - 1); t-- > begin;) {
                ds[t % W] = slope(t, c);
                if (t >= end) continue;
                Real sum = dy[t * C + c];
                for (int64_t l = 0; l < W && t + l < T; ++l)
                    if (l < keys.reach(t + l)) sum += keys.w[c * W + l] * ds[(t + l) % W];
                dx[t * width + c] = sum;
                for (int64_t l = 0; l < keys.reach(t); ++l) dw[c * W + l] += ds[t % W] * keys.x[(t - l) * C + c];
            }
        }
    };
    Real const* const dw = sum_over_rows(T, C * W, scratch, rows);
    Real* const to = args.dw_accumulated_CW.as<Real>();
    for (int64_t i = 0; i < C * W; ++i) to[i] += dw[i];
}

template void key_conv_forward<float>(KeyConvForward const&);
template void key_conv_forward<double>(KeyConvForward const&);
template void key_conv_backward<float>(KeyConvBackward const&, std::vector<float>&);
template void key_conv_backward<double>(KeyConvBackward const&, std::vector<double>&);

}  // namespace perigee::host
