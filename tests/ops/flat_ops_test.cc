// Products, and operations on flat ranges: add, scale, squared norm, AdamW.
#include <bit>
#include <cstring>
#include <thread>

#include "ops/host/blas.h"
#include "ops/op_check.h"

namespace perigee::testing {

namespace {

double squared_norm(Ops& ops, ConstView x) {
    double sum = 0;
    ops.squared_norm(TensorView(&sum, {1}), x);
    return sum;
}

struct Sizes {
    int64_t m, n, k;
};
Values naive_product(Values const& a, Values const& b, Sizes sizes, bool ta, bool tb) {
    auto const [m, n, k] = sizes;
    Values c(static_cast<size_t>(m * n));
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
            for (int64_t l = 0; l < k; ++l)
                c[static_cast<size_t>(i * n + j)] += a[static_cast<size_t>(ta ? l * m + i : i * k + l)] *
                                                     b[static_cast<size_t>(tb ? j * k + l : l * n + j)];
    return c;
}

TEST(MatMul, AgreesWithTheDefinitionForEveryTransposition) {
    auto const device = make_host_device();
    auto const wide = make_host_ops_f64(*device, 2);
    auto const narrow = make_host_ops(*device, 2);
    int64_t const m = 19, n = 23, k = 31;
    Values const a = random_normal<double>(m * k, 1), b = random_normal<double>(k * n, 2);
    for (bool ta : {false, true}) {
        for (bool tb : {false, true}) {
            Values const expected = naive_product(a, b, {m, n, k}, ta, tb);
            auto const product = [&]<class Real>(Ops& ops, Real, bool accumulate) {
                HostTensor<Real> x(ta ? Shape{k, m} : Shape{m, k}, a), y(tb ? Shape{n, k} : Shape{k, n}, b), c({m, n});
                if (accumulate) c.values.assign(c.values.size(), Real(3));
                ops.matmul({.c = c.view(),
                            .a = x.view(),
                            .b = y.view(),
                            .transpose_a = ta,
                            .transpose_b = tb,
                            .accumulate = accumulate});
                Values result = c.wide();
                if (accumulate)
                    for (double& r : result) r -= 3;
                return result;
            };
            for (bool accumulate : {false, true}) {
                EXPECT_LT(relative_error(product(*wide, double(), accumulate), expected), 1e-14);
                EXPECT_LT(relative_error(product(*narrow, float(), accumulate), expected), 1e-6);
            }
        }
    }
}

TEST(MatMul, RefusesShapesThatDoNotFit) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    HostTensor<float> a({2, 3}), b({4, 5}), c({2, 5});
    EXPECT_THROW(ops->matmul({.c = c.view(), .a = a.view(), .b = b.view()}), Error);
}

TEST(MatMul, IsCountedInTheClockOnEveryThread) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    std::vector<float> const a = random_normal<float>(64 * 64, 1);
    MatrixClock const before = host_matrix_clock();
    auto const product = [&a] {
        std::vector<float> c(64 * 64);
        host::gemm<float>({.c = {c.data(), 64}, .a = {a.data(), 64}, .b = {a.data(), 64}, .m = 64, .n = 64, .k = 64});
    };
    product();
    for (int i = 0; i < 5; ++i) std::thread(product).join();
    MatrixClock const after = host_matrix_clock();
    EXPECT_DOUBLE_EQ(after.flops - before.flops, 6 * 2.0 * 64 * 64 * 64);
    EXPECT_GT(after.seconds, before.seconds);
}

TEST(FlatOps, AddAndScale) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 2);
    int64_t const size = 100003;
    Values x = random_normal<double>(size, 1);
    Values const start = x, y = random_normal<double>(size, 2);
    TensorView const view(x.data(), {size});
    ops->add(view, ConstView(y.data(), {size}));
    ops->scale(view, -2.5);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], -2.5 * (start[i] + y[i]));
}

int64_t hash_of(Ops& ops, ConstView x, int64_t start = 0) {
    int64_t hash = start;
    ops.hash_bits(TensorView(&hash, Shape{1}), x);
    return hash;
}

TEST(FlatOps, HashIsTheSumOfTheDefinitionForEverySizeOfElement) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 2);
    for (DType const dtype : {DType::bf16, DType::f32, DType::f64})
        for (int64_t const count : {0, 1, 7, 100003}) {
            std::vector<std::byte> bytes(static_cast<size_t>(count * size_of(dtype)));
            for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i % 251);
            uint64_t expected = 5;
            for (int64_t i = 0; i < count; ++i) {
                uint64_t element = 0;
                std::memcpy(&element, bytes.data() + i * size_of(dtype), static_cast<size_t>(size_of(dtype)));
                uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u ^ element;
                x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
                x = (x ^ x >> 27) * 0x94d049bb133111ebu;
                expected += x ^ x >> 31;
            }
            EXPECT_EQ(static_cast<uint64_t>(hash_of(*ops, TensorView(bytes.data(), dtype, {count}), 5)), expected);
        }
}

TEST(FlatOps, HashChangesWithEveryBitAndWithTheOrderOfElements) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1), two = make_host_ops(*device, 2);
    std::vector<float> x(70001, 0.0F);
    x[1] = 1;
    TensorView const view(x.data(), {std::ssize(x)});
    int64_t const before = hash_of(*ops, view);
    EXPECT_EQ(hash_of(*two, view), before);
    for (size_t const at : {size_t{0}, size_t{40000}, size_t{70000}})
        for (int bit = 0; bit < 32; ++bit) {
            float const was = x[at];
            x[at] = std::bit_cast<float>(std::bit_cast<uint32_t>(was) ^ 1u << bit);
            EXPECT_NE(hash_of(*ops, view), before) << "bit " << bit << " of element " << at;
            x[at] = was;
        }
    std::swap(x[1], x[2]);
    EXPECT_NE(hash_of(*ops, view), before);
}

TEST(FlatOps, SquaredNormIsExactInFp64AndIndependentOfThreads) {
    auto const device = make_host_device();
    std::vector<float> const x = random_normal<float>(1000003, 3);
    long double expected = 0;
    for (float v : x) expected += static_cast<long double>(v) * v;
    ConstView const view(x.data(), {std::ssize(x)});
    double const two = squared_norm(*make_host_ops(*device, 2), view);
    EXPECT_NEAR(two / static_cast<double>(expected), 1, 1e-13);
    EXPECT_EQ(squared_norm(*make_host_ops(*device, 1), view), two);
}

TEST(FlatOps, SquaredNormShowsEveryElementThatIsNotFinite) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 2);
    for (float bad : {NAN, INFINITY, -INFINITY}) {
        for (size_t place : {size_t{0}, size_t{77777}, size_t{99999}}) {
            std::vector<float> x(100000, 1e30f);  // finite in fp64, though not squared in fp32
            ConstView const view(x.data(), {100000});
            EXPECT_TRUE(std::isfinite(squared_norm(*ops, view)));
            x[place] = bad;
            EXPECT_FALSE(std::isfinite(squared_norm(*ops, view)));
        }
    }
}

/// The update as published, one element in fp64.
double reference_adamw(double& w, double& m, double& v, double g, AdamW const& o) {
    g *= o.grad_scale;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    double const m_hat = m / (1 - std::pow(o.beta1, static_cast<double>(o.step)));
    double const v_hat = v / (1 - std::pow(o.beta2, static_cast<double>(o.step)));
    return w -= o.lr * (m_hat / (std::sqrt(v_hat) + o.eps) + o.weight_decay * w);
}

template <class Real>
double adamw_error(Ops& ops, int64_t size) {
    std::vector<Real> w = random_normal<Real>(size, 1), m(w.size()), v(w.size());
    Values w_ref(w.begin(), w.end()), m_ref(w.size()), v_ref(w.size());
    for (int64_t step = 1; step <= 5; ++step) {
        std::vector<Real> const g = random_normal<Real>(size, 10 + static_cast<uint64_t>(step), 0.1);
        AdamW const update{.w = {w.data(), {size}},
                           .m = {m.data(), {size}},
                           .v = {v.data(), {size}},
                           .g = {g.data(), {size}},
                           .lr = 0.01,
                           .weight_decay = 0.1,
                           .grad_scale = 0.5,
                           .step = step};
        ops.adamw(update);
        for (size_t i = 0; i < w.size(); ++i) reference_adamw(w_ref[i], m_ref[i], v_ref[i], g[i], update);
    }
    return std::max({relative_error(w, w_ref), relative_error(m, m_ref), relative_error(v, v_ref)});
}

TEST(FlatOps, AdamWFollowsThePublishedUpdate) {
    auto const device = make_host_device();
    EXPECT_LT(adamw_error<double>(*make_host_ops_f64(*device, 2), 70001), 1e-13);
    EXPECT_LT(adamw_error<float>(*make_host_ops(*device, 2), 70001), 1e-5);
}

/// Weights and bf16 moments after one update from given moments.
struct NarrowMoments {
    std::vector<float> w;
    std::vector<bf16> m, v;
};
NarrowMoments with_narrow_moments(Ops& ops, int64_t size, uint64_t stream, TensorPart part = {}) {
    NarrowMoments x{random_normal<float>(size, 1), std::vector<bf16>(static_cast<size_t>(size), to_bf16(0.3f)),
                    std::vector<bf16>(static_cast<size_t>(size), to_bf16(0.02f))};
    std::vector<float> const g(static_cast<size_t>(size), 0.11f);
    ops.adamw({.w = {x.w.data(), {size}},
               .m = TensorView(x.m.data(), {size}),
               .v = TensorView(x.v.data(), {size}),
               .g = ConstView(g.data(), {size}),
               .lr = 0.01,
               .step = 3,
               .random = Philox(7, Purpose::rounding, stream),
               .part = part});
    return x;
}

TEST(FlatOps, AdamWRoundsMomentsInBf16UpOrDownAtRandom) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 2);
    int64_t const size = 100000;
    NarrowMoments const found = with_narrow_moments(*ops, size, 1);
    float const m0 = to_float(to_bf16(0.3f)), v0 = to_float(to_bf16(0.02f)), g = 0.11f;
    double const m = 0.9 * m0 + 0.1 * g, v = 0.95 * v0 + 0.05 * g * g;
    double sum_m = 0, sum_v = 0, both = 0;
    auto const up = [](bf16 x, double exact) { return to_float(x) > exact; };
    for (size_t i = 0; i < found.m.size(); ++i) {
        ASSERT_NEAR(to_float(found.m[i]), m, m / 128);
        ASSERT_NEAR(to_float(found.v[i]), v, v / 128);
        sum_m += to_float(found.m[i]), sum_v += to_float(found.v[i]);
        both += up(found.m[i], m) && up(found.v[i], v);
    }
    EXPECT_NEAR(sum_m / double(size), m, 2e-5 * m) << "on average nothing is lost";
    EXPECT_NEAR(sum_v / double(size), v, 2e-5 * v);
    double ups_m = 0, ups_v = 0;
    for (size_t i = 0; i < found.m.size(); ++i) ups_m += up(found.m[i], m), ups_v += up(found.v[i], v);
    EXPECT_NEAR(both / double(size), ups_m * ups_v / double(size) / double(size), 0.01) << "independent of each other";

    // The weights use the moments before rounding.
    std::vector<float> w = random_normal<float>(size, 1), wide_m(w.size(), m0), wide_v(w.size(), v0), grad(w.size(), g);
    ops->adamw({.w = {w.data(), {size}},
                .m = {wide_m.data(), {size}},
                .v = {wide_v.data(), {size}},
                .g = ConstView(grad.data(), {size}),
                .lr = 0.01,
                .step = 3});
    EXPECT_EQ(found.w, w);
}

TEST(FlatOps, AdamWRoundsMomentsByTheirPlacesInTheTensor) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 2);
    auto const bits = [](std::vector<bf16> const& x, size_t begin, size_t count) {
        std::vector<uint16_t> bits;
        for (size_t i = begin; i < begin + count; ++i) bits.push_back(x[i].bits);
        return bits;
    };
    NarrowMoments const whole = with_narrow_moments(*ops, 1000, 1), other = with_narrow_moments(*ops, 1000, 2),
                        part = with_narrow_moments(*ops, 300, 1, {.first = 77});
    EXPECT_EQ(bits(part.m, 0, 300), bits(whole.m, 77, 300));
    EXPECT_EQ(bits(part.v, 0, 300), bits(whole.v, 77, 300));
    EXPECT_NE(bits(other.m, 0, 1000), bits(whole.m, 0, 1000));
}

}  // namespace

}  // namespace perigee::testing
