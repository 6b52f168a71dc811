#include "ops/op_check.h"

namespace perigee::testing {

namespace {

constexpr double kQkvEps = 1e-6;

struct Heads {
    int64_t tokens, heads, kv_heads, size;
    int64_t width() const { return (heads + 2 * kv_heads) * size; }
    Shape query() const { return {tokens, heads, size}; }
    Shape key() const { return {tokens, kv_heads, size}; }
    Shape projection() const { return {tokens, width()}; }
};

std::vector<double> frequencies(int64_t size) {
    std::vector<double> f;
    for (int64_t i = 0; i < size; i += 2) f.push_back(std::pow(100.0, -double(i) / double(size)));
    return f;
}

std::vector<int32_t> positions(int64_t tokens) {
    std::vector<int32_t> p;
    for (int64_t t = 0; t < tokens; ++t) p.push_back(static_cast<int32_t>(t % 17));  // documents of 17 tokens
    return p;
}

/// Inputs qkv and, as asked, bias, q_norm, k_norm; outputs q, k, v.
template <class Real>
OpResult qkv(Ops& ops, Heads const& n, bool bias, bool norm, std::vector<Values> const& inputs, Values const& dy) {
    std::vector<int32_t> place = positions(n.tokens);
    HostTensor<Real> cos({n.tokens, n.size / 2}), sin({n.tokens, n.size / 2});
    ops.rope_table({cos.view(), sin.view(), ConstView(place.data(), {n.tokens}), frequencies(n.size), 1.25});

    HostTensor<Real> x(n.projection(), inputs[0]), q(n.query()), k(n.key()), v(n.key()), dx(n.projection());
    Shape const row{n.width()}, head{n.size};
    HostTensor<Real> b(row, bias ? inputs[1] : Values(static_cast<size_t>(n.width())));
    HostTensor<Real> q_norm(head, norm ? inputs[inputs.size() - 2] : Values(static_cast<size_t>(n.size)));
    HostTensor<Real> k_norm(head, norm ? inputs[inputs.size() - 1] : Values(static_cast<size_t>(n.size)));
    Accumulator<Real> db(row), dq_norm(head), dk_norm(head);
    auto const maybe = [](bool on, TensorView view) { return on ? view : TensorView(); };
    ops.qkv_forward({.q_THK = q.view(),
                     .k_TGK = k.view(),
                     .v_TGK = v.view(),
                     .qkv_TX = x.view(),
                     .cos_TR = cos.view(),
                     .sin_TR = sin.view(),
                     .bias_X = maybe(bias, b.view()),
                     .q_norm_K = maybe(norm, q_norm.view()),
                     .k_norm_K = maybe(norm, k_norm.view()),
                     .eps = kQkvEps});
    int64_t const queries = n.query().size(), keys = n.key().size();
    HostTensor<Real> dq(n.query(), slice(dy, 0, queries)), dk(n.key(), slice(dy, queries, keys));
    HostTensor<Real> dv(n.key(), slice(dy, queries + keys, keys));
    ops.qkv_backward({.dqkv_TX = dx.view(),
                      .dq_THK = dq.view(),
                      .dk_TGK = dk.view(),
                      .dv_TGK = dv.view(),
                      .qkv_TX = maybe(norm, x.view()),
                      .cos_TR = cos.view(),
                      .sin_TR = sin.view(),
                      .dbias_accumulated_X = maybe(bias, db.view()),
                      .q_norm_K = maybe(norm, q_norm.view()),
                      .k_norm_K = maybe(norm, k_norm.view()),
                      .dq_norm_accumulated_K = maybe(norm, dq_norm.view()),
                      .dk_norm_accumulated_K = maybe(norm, dk_norm.view()),
                      .eps = kQkvEps});
    OpResult result{.y = joined({q.wide(), k.wide(), v.wide()}), .gradients = {dx.wide()}};
    if (bias) result.gradients.push_back(db.added());
    if (norm) result.gradients.insert(result.gradients.end(), {dq_norm.added(), dk_norm.added()});
    return result;
}

TEST(Qkv, GradientsAndPrecisionWithAndWithoutBiasAndNorm) {
    Heads const n{.tokens = 90, .heads = 4, .kv_heads = 2, .size = 10};
    for (bool bias : {false, true}) {
        for (bool norm : {false, true}) {
            SCOPED_TRACE(fmt::format("bias {} norm {}", bias, norm));
            auto const run = [=]<class Real>(Real) {
                return [=](Ops& ops, std::vector<Values> const& x, Values const& dy) {
                    return qkv<Real>(ops, n, bias, norm, x, dy);
                };
            };
            std::vector<int64_t> sizes{n.projection().size()};
            if (bias) sizes.push_back(n.width());
            if (norm) sizes.insert(sizes.end(), {n.size, n.size});
            OpCheck{run(double()), run(float()), sizes, n.query().size() + 2 * n.key().size()}.run(21);
        }
    }
}

TEST(Qkv, RotatesHalvesAgainstEachOther) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 1);
    Heads const n{.tokens = 3, .heads = 1, .kv_heads = 1, .size = 4};
    Values const x = random_normal<double>(n.projection().size(), 3);
    OpResult const r = qkv<double>(*ops, n, false, false, {x}, Values(36, 0.0));
    std::vector<double> const f = frequencies(4);
    for (int t = 0; t < 3; ++t) {
        for (int i = 0; i < 2; ++i) {
            auto const at = static_cast<size_t>(12 * t + i);
            double const low = x[at], high = x[at + 2], angle = t * f[static_cast<size_t>(i)];
            auto const y = static_cast<size_t>(4 * t + i);
            EXPECT_NEAR(r.y[y], 1.25 * (low * std::cos(angle) - high * std::sin(angle)), 1e-14);
            EXPECT_NEAR(r.y[y + 2], 1.25 * (high * std::cos(angle) + low * std::sin(angle)), 1e-14);
        }
    }
}

TEST(Qkv, ScoresDependOnDistanceOnly) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 1);
    // The same content at every place: q_t . k_s must be a function of t - s.
    Heads const n{.tokens = 12, .heads = 1, .kv_heads = 1, .size = 8};
    Values const one = random_normal<double>(n.width(), 5);
    Values all;
    for (int t = 0; t < 12; ++t) all.insert(all.end(), one.begin(), one.end());
    OpResult const r = qkv<double>(*ops, n, false, false, {all}, Values(288, 0.0));
    auto const score = [&](size_t t, size_t s) {
        double sum = 0;
        for (size_t i = 0; i < 8; ++i) sum += r.y[8 * t + i] * r.y[96 + 8 * s + i];
        return sum;
    };
    EXPECT_NEAR(score(5, 2), score(11, 8), 1e-12);
    EXPECT_GT(std::abs(score(5, 2) - score(5, 3)), 1e-3);
}

/// Columns [begin, end) of each row.
Values columns(Values const& x, int64_t rows, int64_t begin, int64_t end) {
    int64_t const width = std::ssize(x) / rows;
    Values result;
    for (int64_t row = 0; row < rows; ++row)
        result.insert(result.end(), x.begin() + row * width + begin, x.begin() + row * width + end);
    return result;
}

TEST(Qkv, OfQueriesAloneAndOfKeysAloneIsThatOfTheWhole) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    Heads const all{.tokens = 5, .heads = 3, .kv_heads = 2, .size = 4};
    Heads const queries{.tokens = 5, .heads = 3, .kv_heads = 0, .size = 4};
    Heads const keys{.tokens = 5, .heads = 0, .kv_heads = 2, .size = 4};
    int64_t const first = 3 * 4, width = all.width(), rows = all.tokens;
    Values const x = random_normal<double>(rows * width, 7), bias = random_normal<double>(width, 8);
    Values const q_norm = random_normal<double>(4, 9), k_norm = random_normal<double>(4, 10);
    Values const dy = random_normal<double>(rows * width, 11);  // dq, dk and dv one after the other
    auto const run = [&](Heads const& n, int64_t begin, int64_t end) {
        return qkv<float>(*ops, n, true, true,
                          {columns(x, rows, begin, end), slice(bias, begin, end - begin), q_norm, k_norm},
                          slice(dy, rows * begin, rows * (end - begin)));
    };
    OpResult const whole = run(all, 0, width), of_queries = run(queries, 0, first), of_keys = run(keys, first, width);
    EXPECT_EQ(of_queries.y, slice(whole.y, 0, rows * first));
    EXPECT_EQ(of_keys.y, slice(whole.y, rows * first, rows * (width - first)));
    EXPECT_EQ(of_queries.gradients[0], columns(whole.gradients[0], rows, 0, first));
    EXPECT_EQ(of_keys.gradients[0], columns(whole.gradients[0], rows, first, width));
    EXPECT_EQ(of_queries.gradients[1], slice(whole.gradients[1], 0, first));
    EXPECT_EQ(of_keys.gradients[1], slice(whole.gradients[1], first, width - first));
    EXPECT_EQ(of_queries.gradients[2], whole.gradients[2]) << "q_norm";
    EXPECT_EQ(of_keys.gradients[3], whole.gradients[3]) << "k_norm";
}

TEST(Qkv, WrongShapesAreNamed) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    HostTensor<float> q({2, 2, 4}), k({2, 1, 4}), x({2, 15}), table({2, 2});
    EXPECT_THROW(ops->qkv_forward({.q_THK = q.view(),
                                   .k_TGK = k.view(),
                                   .v_TGK = k.view(),
                                   .qkv_TX = x.view(),
                                   .cos_TR = table.view(),
                                   .sin_TR = table.view()}),
                 Error);
}

}  // namespace

}  // namespace perigee::testing
