// Products with a fused norm, and projections of new tokens into a cache, against the same computed by separate
// operations.
#pragma once

#include "ops/decode_case.h"

namespace perigee::testing {

struct ProjectCase {
    std::vector<int32_t> lengths;
    int64_t width = 96, heads = 4, kv_heads = 2, head_dim = 64;
    bool bias = false, norms = false;
};

inline std::vector<ProjectCase> project_cases() {
    std::vector<ProjectCase> cases = {
        {.lengths = {70}}, {.lengths = {31, -1, 0}, .bias = true}, {.lengths = {5, 64}, .norms = true}};
    for (auto const& [width, dim] : {std::pair<int64_t, int64_t>{32, 32}, {2048, 96}, {4096, 128}, {100, 64}})
        cases.push_back({.lengths = {90, 3, 33}, .width = width, .head_dim = dim});
    for (int const rows : {8, 9, 16, 17}) {
        ProjectCase c{.lengths = {}, .width = 64, .heads = 6, .bias = true};
        for (int32_t s = 0; s < rows; ++s) c.lengths.push_back(7 * s - (s == 3 ? 22 : 0));
        cases.push_back(c);
    }
    return cases;
}

/// The largest relative error over vectors of `width` elements, so that one wrong value shows.
inline double worst_error(Values const& found, Values const& want, int64_t width) {
    double worst = 0;
    for (int64_t at = 0; at < std::ssize(want); at += width) {
        auto const part = [&](Values const& of) { return Values(of.begin() + at, of.begin() + at + width); };
        worst = std::max(worst, relative_error(part(found), part(want)));
    }
    return worst;
}

/// decode_qkv against norm, product, qkv_forward and kv_append. In the cache only the newest rows may change.
inline void expect_projection(Ops& ops, ProjectCase const& c, double tolerance) {
    SCOPED_TRACE(
        fmt::format("{} rows of {}, heads {}/{} of {}", c.lengths.size(), c.width, c.heads, c.kv_heads, c.head_dim));
    DecodeCase const cache{.lengths = c.lengths, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
    DecodeLab found(ops, cache), wanted(ops, cache);
    Lab lab(ops);
    int64_t const S = std::ssize(c.lengths), K = c.head_dim, X = (c.heads + 2 * c.kv_heads) * K;
    auto const random = [&](Shape const& shape, uint64_t seed) {
        return lab.compute(shape, random_bf16(shape.size(), seed));
    };
    TensorView const x = random({S, c.width}, 1), w = random({X, c.width}, 2), norm = random({c.width}, 3);
    TensorView const bias = c.bias ? random({X}, 4) : TensorView();
    TensorView const q_norm = c.norms ? random({K}, 5) : TensorView(), k_norm = c.norms ? random({K}, 6) : TensorView();
    std::vector<int32_t> positions;
    std::vector<double> frequencies;
    for (int32_t const length : c.lengths) positions.push_back(std::max(length, 0));
    for (int64_t i = 0; i < K; i += 2) frequencies.push_back(std::pow(1e4, -double(i) / double(K)));
    TensorView const cos = lab.main({S, K / 2}), sin = lab.main({S, K / 2});
    ops.rope_table({cos, sin, lab.ids(positions), frequencies, 1.25});
    TensorView const q = lab.compute({S, c.heads, K}), want_q = lab.compute({S, c.heads, K});
    ops.decode_qkv({.q_SHK = q,
                    .pages = found.pages(),
                    .lengths_S = found.lengths_S,
                    .x_SD = x,
                    .norm_D = norm,
                    .w_XD = w,
                    .cos_SR = cos,
                    .sin_SR = sin,
                    .bias_X = bias,
                    .q_norm_K = q_norm,
                    .k_norm_K = k_norm,
                    .eps = 1e-5});

    TensorView const normed = lab.compute({S, c.width}), rstd = lab.main({S}), qkv = lab.compute({S, X});
    TensorView const k = lab.compute({S, c.kv_heads, K}), v = lab.compute({S, c.kv_heads, K});
    ops.rmsnorm_forward({.y_TD = normed, .rstd_T = rstd, .x_TD = x, .w_D = norm, .eps = 1e-5});
    ops.matmul({.c = qkv, .a = normed, .b = w, .transpose_b = true});
    ops.qkv_forward({.q_THK = want_q,
                     .k_TGK = k,
                     .v_TGK = v,
                     .qkv_TX = qkv,
                     .cos_TR = cos,
                     .sin_TR = sin,
                     .bias_X = bias,
                     .q_norm_K = q_norm,
                     .k_norm_K = k_norm,
                     .eps = 1e-5});
    ops.kv_append({.pages = wanted.pages(), .k_SGK = k, .v_SGK = v, .lengths_S = wanted.lengths_S});
    EXPECT_LT(worst_error(lab.values(q), lab.values(want_q), K), tolerance);
    EXPECT_LT(worst_error(found.keys(), wanted.keys(), K), tolerance);
    EXPECT_LT(worst_error(found.values(), wanted.values(), K), tolerance);
    Values const untouched = DecodeLab(ops, cache).keys();
    int64_t changed = 0;
    Values const keys = found.keys();
    for (int64_t row = 0; row < std::ssize(keys); row += K)
        changed += !std::equal(keys.begin() + row, keys.begin() + row + K, untouched.begin() + row);
    EXPECT_EQ(changed, c.kv_heads * (S - std::ranges::count(c.lengths, -1)));
}

/// normed_product against norm, product and SwiGLU.
inline void expect_normed_products(Ops& ops, double tolerance) {
    for (auto const& [n, width] :
         {std::pair<int64_t, int64_t>{8, 32}, {24, 64}, {104, 288}, {520, 2048}, {80, 8192}, {36, 96}, {16, 8224}})
        for (int64_t const rows : {1, 3, 8, 11, 16, 17})
            for (bool const swiglu : {false, true}) {
                SCOPED_TRACE(fmt::format("{} rows, {} x {}{}", rows, n, width, swiglu ? ", SwiGLU" : ""));
                Lab lab(ops);
                auto const random = [&](Shape const& shape, uint64_t seed, double stddev) {
                    return lab.compute(shape, random_bf16(shape.size(), seed, stddev));
                };
                double const small = 1 / std::sqrt(static_cast<double>(width));
                TensorView const x = random({rows, width}, 1, 3), w = random({n, width}, 2, small),
                                 norm = random({width}, 3, 1);
                TensorView const y = lab.compute({rows, swiglu ? n / 2 : n}), want = lab.compute(y.shape);
                ops.normed_product({.y_SN = y, .x_SD = x, .norm_D = norm, .w_ND = w, .eps = 1e-5, .swiglu = swiglu});
                TensorView const normed = lab.compute({rows, width}), rstd = lab.main({rows}),
                                 product = lab.compute({rows, n});
                ops.rmsnorm_forward({.y_TD = normed, .rstd_T = rstd, .x_TD = x, .w_D = norm, .eps = 1e-5});
                ops.matmul({.c = swiglu ? product : want, .a = normed, .b = w, .transpose_b = true});
                if (swiglu) ops.swiglu_forward(want, product);
                EXPECT_LT(relative_error(lab.values(y), lab.values(want)), tolerance);
            }
}

}  // namespace perigee::testing
