// The split of the fused projection on the GPU: bias, norms of heads, RoPE.
#include <fmt/format.h>

#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuQkv = GpuTest;

struct ProjectedHeads {
    int64_t tokens, heads, kv_heads, size;
    Shape query() const { return {tokens, heads, size}; }
    Shape key() const { return {tokens, kv_heads, size}; }
    Shape projection() const { return {tokens, (heads + 2 * kv_heads) * size}; }
};

struct Parts {
    bool bias = false, q_norm = false, k_norm = false;
};

std::vector<double> frequencies(int64_t size) {
    std::vector<double> f;
    for (int64_t i = 0; i < size; i += 2) f.push_back(std::pow(500000.0, -double(i) / double(size)));
    return f;
}

void qkv_case(Lab& lab, ProjectedHeads const& n, Parts parts) {
    constexpr double kEps = 1e-6;
    Shape const head{n.size}, row{n.projection()[1]}, table{n.tokens, n.size / 2};
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < n.tokens; ++t) positions.push_back(static_cast<int32_t>(t * 1009 % 131072));
    TensorView const cos = lab.main(table), sin = lab.main(table);
    lab.ops.rope_table({cos, sin, lab.ids(positions), frequencies(n.size), 1.25});
    lab.result("cos", cos);
    lab.result("sin", sin);

    auto const weights = [&](bool on, uint64_t seed) {
        return on ? lab.compute(head, random_bf16(n.size, seed)) : TensorView();
    };
    TensorView const qkv = lab.compute(n.projection(), random_sixteenths(n.projection().size(), 31));
    TensorView const bias = parts.bias ? lab.compute(row, random_sixteenths(row[0], 32)) : TensorView();
    TensorView const q_norm = weights(parts.q_norm, 33), k_norm = weights(parts.k_norm, 34);
    // Of no heads there is no memory.
    auto const heads = [&](Shape const& shape, uint64_t seed) {
        if (shape.size() == 0) return TensorView(nullptr, lab.ops.compute_dtype(), shape);
        return seed == 0 ? lab.compute(shape) : lab.compute(shape, random_bf16(shape.size(), seed));
    };
    TensorView const q = heads(n.query(), 0), k = heads(n.key(), 0), v = heads(n.key(), 0);
    lab.ops.qkv_forward({.q_THK = q,
                         .k_TGK = k,
                         .v_TGK = v,
                         .qkv_TX = qkv,
                         .cos_TR = cos,
                         .sin_TR = sin,
                         .bias_X = bias,
                         .q_norm_K = q_norm,
                         .k_norm_K = k_norm,
                         .eps = kEps});
    for (auto const& [name, view] : {std::pair("q", q), {"k", k}, {"v", v}, {"qkv", qkv}})
        if (!view.empty()) lab.result(name, view);

    auto const sums = [&](bool on, Shape const& shape, uint64_t seed) {
        return on ? lab.main(shape, random_bf16(shape[0], seed)) : TensorView();
    };
    TensorView const dqkv = lab.compute(n.projection()), dbias = sums(parts.bias, row, 35);
    TensorView const dq_norm = sums(parts.q_norm, head, 36), dk_norm = sums(parts.k_norm, head, 37);
    lab.ops.qkv_backward({.dqkv_TX = dqkv,
                          .dq_THK = heads(n.query(), 38),
                          .dk_TGK = heads(n.key(), 39),
                          .dv_TGK = heads(n.key(), 40),
                          .qkv_TX = parts.q_norm || parts.k_norm ? qkv : TensorView(),
                          .cos_TR = cos,
                          .sin_TR = sin,
                          .dbias_accumulated_X = dbias,
                          .q_norm_K = q_norm,
                          .k_norm_K = k_norm,
                          .dq_norm_accumulated_K = dq_norm,
                          .dk_norm_accumulated_K = dk_norm,
                          .eps = kEps});
    lab.result("dqkv", dqkv);
    for (auto const& [name, view] : {std::pair("dbias", dbias), {"dq_norm", dq_norm}, {"dk_norm", dk_norm}})
        if (!view.empty()) lab.result(name, view);
}

TEST_F(GpuQkv, MatchesTheHostForEveryKindOfHead) {
    // Halves that are and are not multiples of 8, powers of two and not; blocks with heads of several kinds; tokens of
    // one block and of two; one token.
    for (ProjectedHeads const n :
         {ProjectedHeads{65, 4, 2, 64}, ProjectedHeads{300, 24, 8, 64}, ProjectedHeads{40, 3, 1, 128},
          ProjectedHeads{9, 2, 2, 256}, ProjectedHeads{30, 5, 1, 96}, ProjectedHeads{20, 3, 3, 80},
          ProjectedHeads{33, 2, 1, 34}, ProjectedHeads{12, 4, 2, 250}, ProjectedHeads{1, 33, 11, 32},
          ProjectedHeads{3000, 1, 1, 32}})
        for (Parts const parts : {Parts{}, Parts{.bias = true}, Parts{.q_norm = true, .k_norm = true},
                                  Parts{.bias = true, .q_norm = true, .k_norm = true}}) {
            SCOPED_TRACE(fmt::format("{} tokens, {} + 2 x {} heads of {}, bias {}, norms {}", n.tokens, n.heads,
                                     n.kv_heads, n.size, parts.bias, parts.q_norm));
            compare([&](Lab& lab) { qkv_case(lab, n, parts); });
        }
}

TEST_F(GpuQkv, NormalisesOnlyTheQueriesOrOnlyTheKeys) {
    for (Parts const parts : {Parts{.q_norm = true}, Parts{.k_norm = true}})
        compare([&](Lab& lab) { qkv_case(lab, {50, 4, 2, 64}, parts); });
}

/// As where keys and values travel before the queries are projected.
TEST_F(GpuQkv, TakesQueriesAloneAndKeysAlone) {
    for (ProjectedHeads const n : {ProjectedHeads{70, 8, 0, 128}, ProjectedHeads{70, 0, 4, 128},
                                   ProjectedHeads{33, 5, 0, 64}, ProjectedHeads{33, 0, 3, 96}})
        for (bool const bias : {false, true}) {
            bool const queries = n.heads > 0;
            SCOPED_TRACE(fmt::format("{} + 2 x {} heads of {}, bias {}", n.heads, n.kv_heads, n.size, bias));
            compare([&](Lab& lab) { qkv_case(lab, n, {.bias = bias}); });
            compare([&](Lab& lab) { qkv_case(lab, n, {.bias = bias, .q_norm = queries, .k_norm = !queries}); });
        }
}

TEST_F(GpuQkv, SaysWhichHeadIsTooWide) {
    Lab lab(gpu());
    ProjectedHeads const n{1, 1, 1, 258};
    EXPECT_THROW(gpu().qkv_forward({.q_THK = lab.compute(n.query()),
                                    .k_TGK = lab.compute(n.key()),
                                    .v_TGK = lab.compute(n.key()),
                                    .qkv_TX = lab.compute(n.projection()),
                                    .cos_TR = lab.main({1, 129}),
                                    .sin_TR = lab.main({1, 129})}),
                 Error);
}

}  // namespace

}  // namespace perigee::testing
