// Dense attention on the GPU against the fp64 reference.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "kernels/block_sparse_attention/reference.h"
#include "kernels/dense_attention/dense_attention.h"
#include "kernels/gpu_moba.h"

namespace perigee {
namespace {

using testing::GpuArray;
using testing::relative_error;

constexpr double kDenseTolerance = 5e-3;
constexpr double kDenseLseTolerance = 1e-3;

struct Case {
    std::vector<int32_t> cu_seqlens;
    int64_t heads = 4, kv_heads = 2, head_dim = 64;
    uint64_t seed = 1;
};

ReferenceProblem make_problem(Case const& c) {
    return testing::make_gpu_problem(
        {.cu_seqlens = c.cu_seqlens, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim, .seed = c.seed});
}

struct Forward {
    std::vector<double> o;
    std::vector<float> lse;
    bool operator==(Forward const&) const = default;
};

struct Backward {
    std::vector<double> dq, dk, dv;
    bool operator==(Backward const&) const = default;
};

/// A problem on the GPU, of queries [begin, end).
class Problem {
  public:
    explicit Problem(ReferenceProblem const& p, int64_t window = 0) : Problem(p, 0, p.tokens(), window) {}
    Problem(ReferenceProblem const& p, int64_t begin, int64_t end, int64_t window = 0)
        : device_(make_cuda_device(0)),
          borders_(*device_, p.cu_seqlens),
          q_(*device_, rows(testing::to_bf16(p.q), begin, end, p.heads * p.head_dim)),
          k_(*device_, testing::to_bf16(p.k)),
          v_(*device_, testing::to_bf16(p.v)),
          d_o_(*device_, testing::to_bf16(p.d_o)),
          problem_{.shape = {.tokens = p.tokens(),
                             .documents = std::ssize(p.cu_seqlens) - 1,
                             .heads = p.heads,
                             .kv_heads = p.kv_heads,
                             .head_dim = p.head_dim,
                             .window = window},
                   .query_begin = begin,
                   .queries = end - begin,
                   .scale = p.scale,
                   .cu_seqlens = borders_.data(),
                   .q = q_.data(),
                   .k = k_.data(),
                   .v = v_.data(),
                   .stream = dynamic_cast<CudaDevice&>(*device_).stream()} {}

    Forward forward() {
        int64_t const rows = problem_.queries * problem_.shape.heads;
        GpuArray<bf16> const o(*device_, rows * problem_.shape.head_dim);
        GpuArray<float> const lse(*device_, rows);
        GpuArray<unsigned char> const scratch = scratch_of(dense_forward_scratch(problem_.shape));
        dense_attention_forward(problem_, o.data(), lse.data());
        scratch.get();
        return {testing::to_double(o.get()), lse.get()};
    }
    /// From the reference's o and lse, so that a fault of the forward is not seen twice.
    Backward backward(ReferenceResult const& forward, bool deterministic, int64_t sums_bytes = 1 << 30,
                      int64_t cached_bytes = DenseAttentionShape{}.cached_bytes) {
        problem_.shape.deterministic = deterministic;
        problem_.shape.sums_bytes = sums_bytes;
        problem_.shape.cached_bytes = cached_bytes;
        GpuArray<bf16> const o(*device_, testing::to_bf16(forward.o)), dq(*device_, std::ssize(forward.o));
        GpuArray<float> const lse(*device_, std::vector<float>(forward.lse.begin(), forward.lse.end()));
        int64_t const keys = problem_.shape.tokens * problem_.shape.kv_heads * problem_.shape.head_dim;
        GpuArray<bf16> const dk(*device_, keys), dv(*device_, keys);
        GpuArray<unsigned char> const scratch = scratch_of(dense_backward_scratch(problem_.shape));
        dense_attention_backward(
            problem_,
            {.d_o = d_o_.data(), .o = o.data(), .lse = lse.data(), .dq = dq.data(), .dk = dk.data(), .dv = dv.data()});
        scratch.get();
        return {testing::to_double(dq.get()), testing::to_double(dk.get()), testing::to_double(dv.get())};
    }

    template <class T>
    static std::vector<T> rows(std::vector<T> const& all, int64_t begin, int64_t end, int64_t width) {
        return {all.begin() + begin * width, all.begin() + end * width};
    }

  private:
    GpuArray<unsigned char> scratch_of(size_t bytes) {
        GpuArray<unsigned char> scratch(*device_, static_cast<int64_t>(bytes));
        problem_.scratch = scratch.data();
        return scratch;
    }

    std::unique_ptr<Device> device_;
    GpuArray<int32_t> borders_;
    GpuArray<bf16> q_, k_, v_, d_o_;
    DenseAttentionProblem problem_;
};

enum class Pass { forward, backward, deterministic };
std::string name_of(Pass pass) {
    return pass == Pass::forward ? "forward" : pass == Pass::backward ? "backward" : "deterministic";
}

class GpuDenseKernels : public testing::GpuMobaTest, public ::testing::WithParamInterface<Pass> {
  protected:
    void SetUp() override {
        GpuMobaTest::SetUp();
        if (!IsSkipped() && !has_dense_attention(64)) GTEST_SKIP() << "no kernels for this GPU";
    }
    static bool is_forward() { return GetParam() == Pass::forward; }
    static bool is_deterministic() { return GetParam() == Pass::deterministic; }
};

double most_different(std::vector<float> const& a, std::vector<double> const& b) {
    double most = a.size() == b.size() ? 0 : INFINITY;
    for (size_t i = 0; i < a.size(); ++i) most = std::isnan(a[i]) ? INFINITY : std::max(most, std::abs(a[i] - b[i]));
    return most;
}

void expect_right(Forward const& found, ReferenceResult const& reference, std::string const& what) {
    EXPECT_LT(relative_error(found.o, reference.o), kDenseTolerance) << what;
    EXPECT_LT(most_different(found.lse, reference.lse), kDenseLseTolerance) << what;
}

void expect_right(Backward const& found, ReferenceResult const& reference, std::string const& what) {
    EXPECT_LT(relative_error(found.dq, reference.dq), kDenseTolerance) << what;
    EXPECT_LT(relative_error(found.dk, reference.dk), kDenseTolerance) << what;
    EXPECT_LT(relative_error(found.dv, reference.dv), kDenseTolerance) << what;
}

/// The pass that is tested.
void expect_right(ReferenceProblem const& p, Pass pass, std::string const& what) {
    auto const reference = reference_attention(p);
    if (pass == Pass::forward)
        expect_right(Problem(p).forward(), reference, what);
    else
        expect_right(Problem(p).backward(reference, pass == Pass::deterministic), reference, what);
}
void expect_right(Case const& c, Pass pass) {
    expect_right(
        make_problem(c), pass,
        fmt::format("{}/{} heads of {}, {} documents", c.heads, c.kv_heads, c.head_dim, c.cu_seqlens.size() - 1));
}

/// Attention of each query to the last `window` keys up to its own, key by key.
ReferenceResult windowed_reference(ReferenceProblem const& p, int64_t window) {
    int64_t const T = p.tokens(), H = p.heads, G = p.kv_heads, K = p.head_dim;
    ReferenceResult r;
    r.o.resize(static_cast<size_t>(T * H * K)), r.lse.resize(static_cast<size_t>(T * H));
    r.dq.resize(r.o.size()), r.dk.resize(static_cast<size_t>(T * G * K)), r.dv.resize(r.dk.size());
    auto const dot = [K](double const* x, double const* y) { return std::inner_product(x, x + K, y, 0.0); };
    for (size_t d = 1; d < p.cu_seqlens.size(); ++d)
        for (int64_t t = p.cu_seqlens[d - 1]; t < p.cu_seqlens[d]; ++t)
            for (int64_t h = 0; h < H; ++h) {
                int64_t const row = (t * H + h) * K, first = std::max<int64_t>(p.cu_seqlens[d - 1], t + 1 - window);
                auto const key = [&](int64_t j) { return (j * G + h * G / H) * K; };
                std::vector<double> scores;
                for (int64_t j = first; j <= t; ++j) scores.push_back(p.scale * dot(&p.q[row], &p.k[key(j)]));
                double const most = *std::ranges::max_element(scores);
                double sum = 0;
                for (double const score : scores) sum += std::exp(score - most);
                double const lse = r.lse[static_cast<size_t>(t * H + h)] = most + std::log(sum);
                auto const weight = [&](int64_t j) { return std::exp(scores[static_cast<size_t>(j - first)] - lse); };
                for (int64_t j = first; j <= t; ++j) {
                    double const w = weight(j);
                    for (int64_t i = 0; i < K; ++i) r.o[row + i] += w * p.v[key(j) + i];
                }
                double const delta = dot(&p.d_o[row], &r.o[row]);
                for (int64_t j = first; j <= t; ++j) {
                    double const w = weight(j), ds = p.scale * w * (dot(&p.d_o[row], &p.v[key(j)]) - delta);
                    for (int64_t i = 0; i < K; ++i) {
                        r.dv[key(j) + i] += w * p.d_o[row + i];
                        r.dq[row + i] += ds * p.k[key(j) + i];
                        r.dk[key(j) + i] += ds * p.q[row + i];
                    }
                }
            }
    return r;
}

/// Documents of every length up to `longest`: they begin and end at every offset modulo the tiles.
std::vector<int32_t> every_length(int32_t longest) {
    std::vector<int32_t> borders = {0};
    for (int32_t i = 0; i <= longest; ++i) borders.push_back(borders.back() + i * 101 % (longest + 1));
    return borders;
}

TEST_P(GpuDenseKernels, DocumentsOfEveryLength) {
    for (int64_t const dim : {64, 96, 128})
        for (int64_t const heads : {2, 3})
            expect_right({.cu_seqlens = every_length(200), .heads = heads, .kv_heads = 1, .head_dim = dim}, GetParam());
}

TEST_P(GpuDenseKernels, LongAndEmptyDocuments) {
    for (int64_t const dim : {64, 96, 128})
        for (int64_t const heads : {4, 6})
            for (std::vector<int32_t> const& borders :
                 {std::vector<int32_t>{0, 1}, {0, 0, 900}, {0, 300, 300, 301, 700, 700}, {0, 512, 1024}})
                expect_right(
                    {.cu_seqlens = borders, .heads = heads, .head_dim = dim, .seed = static_cast<uint64_t>(dim)},
                    GetParam());
}

TEST_P(GpuDenseKernels, AnyGroupSize) {
    for (auto const& [H, G] : {std::pair{1, 1}, {4, 4}, {3, 1}, {7, 1}, {6, 1}, {8, 2}, {16, 1}})
        for (int64_t const dim : {64, 96, 128})
            expect_right({.cu_seqlens = {0, 100, 333}, .heads = H, .kv_heads = G, .head_dim = dim}, GetParam());
}

/// Two query tiles of a group share the keys and values that are loaded; with a window each has its own.
TEST_P(GpuDenseKernels, PairsOfTilesGiveTheBitsOfTilesAlone) {
    if (!is_forward()) GTEST_SKIP() << "of the forward only";
    std::vector<int32_t> borders = every_length(130);
    for (int32_t length = 131; length < 900; length += 37) borders.push_back(borders.back() + length);
    for (int32_t const length : {257, 385, 577, 1500, 2700}) borders.push_back(borders.back() + length);
    std::vector<int32_t> short_ones;
    for (int32_t i = 0; i <= 300; ++i) short_ones.push_back(i * 64);
    for (int64_t const dim : {64, 96, 128})
        for (auto const& [H, G] : {std::pair{8, 2}, {6, 1}, {2, 2}, {6, 2}, {5, 1}, {7, 1}})
            for (auto const& documents : {borders, short_ones}) {
                auto const p = make_problem({.cu_seqlens = documents, .heads = H, .kv_heads = G, .head_dim = dim});
                EXPECT_EQ(Problem(p).forward(), Problem(p, p.tokens()).forward())
                    << H << "/" << G << " heads of " << dim;
            }
}

TEST_P(GpuDenseKernels, PassesOfHeadsThatFit) {
    if (is_forward()) GTEST_SKIP() << "of the backward only";
    for (int64_t const dim : {64, 96, 128}) {
        auto const p = make_problem({.cu_seqlens = {0, 100, 333}, .heads = 6, .kv_heads = 3, .head_dim = dim});
        auto const reference = reference_attention(p);
        for (int64_t const bytes :
             {int64_t{1}, 2 * (333 / 128 + 2) * 128 * 2 * ((dim + 63) / 64 * 64) * 4})  // one head, two heads
            expect_right(Problem(p).backward(reference, is_deterministic(), bytes), reference,
                         fmt::format("{} bytes", bytes));
    }
}

/// As the backward takes them in documents whose rows the cache does not hold.
TEST_P(GpuDenseKernels, OneOrTwoHeadsOfAGroupAtATime) {
    if (GetParam() != Pass::backward) GTEST_SKIP() << "of the backward in any order only";
    std::vector<std::vector<int32_t>> const packs = {
        {0, 1}, {0, 300, 300, 301, 700, 700}, {0, 512, 2600}, every_length(60), {0, 128, 5000}};
    for (auto const& [H, G] : {std::pair{2, 1}, {6, 2}, {4, 1}, {7, 1}, {3, 3}, {8, 1}})
        for (auto const& borders : packs) {
            if (borders.back() > 4000 && H > 2) continue;  // the reference takes long
            auto const p = make_problem({.cu_seqlens = borders, .heads = H, .kv_heads = G, .head_dim = 128});
            auto const reference = reference_attention(p);
            for (int64_t const sums : {1, 1 << 30})
                expect_right(Problem(p).backward(reference, false, sums, 0), reference,
                             fmt::format("{}/{} heads, {} tokens", H, G, borders.back()));
        }
}

TEST_P(GpuDenseKernels, ARangeOfQueriesMeetsAllKeys) {
    if (!is_forward()) GTEST_SKIP() << "of the forward only";
    for (auto const& [dim, heads] : {std::pair{64, 4}, {96, 4}, {128, 4}, {64, 6}, {96, 6}, {128, 2}}) {
        Case const c{.cu_seqlens = {0, 130, 400, 401, 700}, .heads = heads, .head_dim = dim};
        auto const p = make_problem(c);
        auto const all = reference_attention(p);
        for (auto const& [begin, end] : {std::pair{0, 1}, {0, 130}, {100, 140}, {129, 401}, {333, 650}, {400, 700}}) {
            ReferenceResult part;
            part.o = Problem::rows(all.o, begin, end, c.heads * dim);
            part.lse = Problem::rows(all.lse, begin, end, c.heads);
            expect_right(Problem(p, begin, end).forward(), part, fmt::format("queries {} to {}", begin, end));
        }
    }
}

/// Tokens [150, 280) are full of infinities and NaN, and so is row 1 of token 400's queries.
class Poisoned {
  public:
    Poisoned(int64_t dim, int64_t heads)
        : case_{.cu_seqlens = {0, 150, 280, 600, 640}, .heads = heads, .head_dim = dim} {
        problem_ = clean_ = make_problem(case_);
        auto const poison = [](std::vector<double>& x, int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) x[static_cast<size_t>(i)] = i % 2 == 0 ? NAN : INFINITY;
        };
        int64_t const row = case_.heads * dim, keys = case_.kv_heads * dim;
        for (std::vector<double>* const x : {&problem_.q, &problem_.d_o}) poison(*x, 150 * row, 280 * row);
        for (std::vector<double>* const x : {&problem_.k, &problem_.v}) poison(*x, 150 * keys, 280 * keys);
        poison(problem_.q, 400 * row + dim, 400 * row + 2 * dim);
    }
    ReferenceProblem const& clean() const { return clean_; }
    ReferenceProblem const& problem() const { return problem_; }
    Case const& shape() const { return case_; }

  private:
    Case case_;
    ReferenceProblem clean_, problem_;
};

/// What a document has of infinities and NaN no other document feels; a query's stay in its row.
TEST_P(GpuDenseKernels, NoDocumentFeelsAnother) {
    for (auto const& [dim, heads] : {std::pair{64, 4}, {96, 4}, {128, 4}, {64, 6}, {96, 6}, {128, 6}, {128, 2}}) {
        Poisoned const poisoned(dim, heads);
        Case const& c = poisoned.shape();
        int64_t const row = c.heads * dim;
        if (is_forward()) {
            Forward const clean = Problem(poisoned.clean()).forward(), found = Problem(poisoned.problem()).forward();
            int64_t different = 0;
            for (int64_t i = 0; i < 640 * row; ++i) {
                int64_t const token = i / row;
                if ((token >= 150 && token < 280) || (token == 400 && i % row / dim == 1)) continue;
                auto const stat = static_cast<size_t>(i / dim);
                different += found.o[static_cast<size_t>(i)] != clean.o[static_cast<size_t>(i)];
                different += found.lse[stat] != clean.lse[stat];
            }
            EXPECT_EQ(different, 0);
            EXPECT_TRUE(std::isnan(found.lse[static_cast<size_t>(400 * c.heads + 1)]));
            continue;
        }
        auto const reference = reference_attention(poisoned.clean());
        for (int64_t const cached : {DenseAttentionShape{}.cached_bytes, int64_t{0}}) {
            Backward const found = Problem(poisoned.problem()).backward(reference, is_deterministic(), 1 << 30, cached);
            auto const expect_same = [&](std::vector<double> const& x, std::vector<double> const& right,
                                         int64_t width) {
                for (auto const& [begin, end] : {std::pair{0, 150}, {600, 640}})
                    EXPECT_LT(
                        relative_error(Problem::rows(x, begin, end, width), Problem::rows(right, begin, end, width)),
                        kDenseTolerance);
            };
            expect_same(found.dq, reference.dq, row);
            expect_same(found.dk, reference.dk, c.kv_heads * dim);
            expect_same(found.dv, reference.dv, c.kv_heads * dim);
        }
    }
}

TEST_P(GpuDenseKernels, LargeScoresAreExact) {
    if (!is_forward()) GTEST_SKIP() << "the reference's o is rounded";
    for (int64_t const dim : {64, 96, 128}) {
        auto p = make_problem({.cu_seqlens = {0, 500}, .head_dim = dim});
        for (double& x : p.q) x *= 8;
        for (size_t i = 0; i < p.k.size(); ++i) p.k[i] *= i % 3 == 0 ? 16 : 1;
        expect_right(p, GetParam(), "large scores");
    }
}

/// Maxima grow tile by tile, most of them below zero, where floats are not in the order of their bits.
TEST_P(GpuDenseKernels, ScoresMayRiseFromFarBelowZero) {
    if (!is_forward()) GTEST_SKIP() << "of the forward only";
    for (int64_t const dim : {64, 96, 128}) {
        auto p = make_problem({.cu_seqlens = {0, 1500}, .head_dim = dim});
        auto const tokens = static_cast<double>(p.tokens());
        int64_t const keys = p.kv_heads * dim;
        for (double& x : p.q) x = std::abs(x);
        for (int64_t i = 0; i < std::ssize(p.k); ++i) {
            double& x = p.k[static_cast<size_t>(i)];
            double const rising = std::abs(x) * (24 * static_cast<double>(i / keys) / tokens - 20);
            x = to_float(to_bf16(static_cast<float>(rising)));
        }
        expect_right(p, GetParam(), "rising scores");
    }
}

TEST_P(GpuDenseKernels, RepeatsBitwise) {
    if (GetParam() == Pass::backward) GTEST_SKIP() << "its sums are made in any order";
    for (auto const& [dim, heads] : {std::pair{64, 4}, {96, 4}, {128, 4}, {64, 6}, {128, 6}}) {
        Problem problem(
            make_problem({.cu_seqlens = {0, 1100, 1101, 3000}, .heads = heads, .kv_heads = 2, .head_dim = dim}));
        Forward const first = problem.forward();
        ReferenceResult given;
        given.o = first.o, given.lse = {first.lse.begin(), first.lse.end()};
        Backward const gradients = is_forward() ? Backward{} : problem.backward(given, true);
        for (int i = 0; i < 20; ++i) {
            if (is_forward())
                ASSERT_EQ(problem.forward(), first);
            else
                ASSERT_EQ(problem.backward(given, true), gradients);
        }
    }
}

int64_t wrong_rows(std::vector<double> const& found, std::vector<double> const& right, int64_t dim) {
    int64_t wrong = 0;
    for (int64_t row = 0; row < std::ssize(right); row += dim) {
        double error = 0, norm = 0;
        for (auto i = static_cast<size_t>(row); i < static_cast<size_t>(row + dim); ++i)
            error += (found[i] - right[i]) * (found[i] - right[i]), norm += right[i] * right[i];
        wrong += !(error <= 0.02 * 0.02 * norm);
    }
    return wrong;
}

/// KV tiles that add to dq at the same time lose no part of it, nor do the heads of a group that add to dk and dv. A
/// lost part changes some row by a tenth or more.
TEST_P(GpuDenseKernels, EveryKeyTileAddsToEveryRow) {
    if (GetParam() != Pass::backward) GTEST_SKIP() << "others add in turn, or do not add";
    struct Case {
        int64_t heads, kv_heads, head_dim, cached_bytes;
    };
    int64_t const whole = DenseAttentionShape{}.cached_bytes;
    for (Case const& c : {Case{16, 4, 64, whole}, Case{16, 4, 96, whole}, Case{16, 4, 128, whole}, Case{16, 4, 128, 0},
                          Case{32, 16, 128, 0}}) {  // 16 kv heads: five at a time
        Problem problem(make_problem(
            {.cu_seqlens = {0, 6000, 7000}, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim}));
        Forward const forward = problem.forward();
        ReferenceResult given;
        given.o = forward.o, given.lse = {forward.lse.begin(), forward.lse.end()};
        Backward const right = problem.backward(given, true);
        for (int repeat = 0; repeat < 8; ++repeat) {
            Backward const found = problem.backward(given, false, 1 << 30, c.cached_bytes);
            ASSERT_EQ(wrong_rows(found.dq, right.dq, c.head_dim), 0) << "dq, head size " << c.head_dim;
            ASSERT_EQ(wrong_rows(found.dk, right.dk, c.head_dim), 0) << "dk, head size " << c.head_dim;
            ASSERT_EQ(wrong_rows(found.dv, right.dv, c.head_dim), 0) << "dv, head size " << c.head_dim;
        }
    }
}

TEST(WindowedReference, OfAllKeysIsFullAttention) {
    auto const p = make_problem({.cu_seqlens = {0, 1, 60, 60, 133}});
    ReferenceResult const all = reference_attention(p), windowed = windowed_reference(p, 73);
    for (auto const x :
         {&ReferenceResult::o, &ReferenceResult::lse, &ReferenceResult::dq, &ReferenceResult::dk, &ReferenceResult::dv})
        EXPECT_LT(relative_error(windowed.*x, all.*x), 1e-12);
    EXPECT_GT(relative_error(windowed_reference(p, 72).o, all.o), 1e-6);
}

TEST_P(GpuDenseKernels, AWindowEndsWhatQueriesSee) {
    for (int64_t const dim : {64, 96, 128})
        for (int64_t const window : {1, 2, 63, 64, 65, 127, 128, 129, 200, 256, 700, 5000}) {
            auto const p = make_problem({.cu_seqlens = {0, 1, 130, 130, 700, 1300}, .head_dim = dim});
            auto const reference = windowed_reference(p, window);
            std::string const what = fmt::format("head size {}, window {}", dim, window);
            if (is_forward())
                expect_right(Problem(p, window).forward(), reference, what);
            else
                expect_right(Problem(p, window).backward(reference, is_deterministic()), reference, what);
        }
}

/// More heads in a group than row tiles in shared memory: which of these the document ends in differs by head.
TEST_P(GpuDenseKernels, AWindowOfALargeGroup) {
    for (int64_t const dim : {64, 96, 128})
        for (int64_t const window : {65, 200, 700}) {
            auto const p = make_problem({.cu_seqlens = {0, 1, 130, 700}, .heads = 7, .kv_heads = 1, .head_dim = dim});
            auto const reference = windowed_reference(p, window);
            std::string const what = fmt::format("head size {}, window {}", dim, window);
            if (is_forward())
                expect_right(Problem(p, window).forward(), reference, what);
            else
                expect_right(Problem(p, window).backward(reference, is_deterministic()), reference, what);
        }
}

TEST_P(GpuDenseKernels, AWindowOfADocumentIsNone) {
    for (int64_t const dim : {64, 96, 128}) {
        auto const p = make_problem({.cu_seqlens = {0, 300, 700}, .head_dim = dim});
        if (is_forward()) {
            EXPECT_EQ(Problem(p, 400).forward(), Problem(p).forward());
            EXPECT_NE(Problem(p, 399).forward(), Problem(p).forward());
        } else if (is_deterministic()) {
            auto const reference = reference_attention(p);
            EXPECT_EQ(Problem(p, 400).backward(reference, true), Problem(p).backward(reference, true));
        }
    }
}

TEST_P(GpuDenseKernels, AWindowRepeatsBitwise) {
    if (GetParam() == Pass::backward) GTEST_SKIP() << "its sums are made in any order";
    for (int64_t const dim : {64, 96, 128}) {
        auto const p = make_problem({.cu_seqlens = {0, 1100, 1101, 3000}, .head_dim = dim});
        auto const reference = windowed_reference(p, 300);
        Problem problem(p, 300);
        for (int i = 0; i < 5; ++i)
            if (is_forward())
                ASSERT_EQ(problem.forward(), Problem(p, 300).forward());
            else
                ASSERT_EQ(problem.backward(reference, true), Problem(p, 300).backward(reference, true));
    }
}

TEST_P(GpuDenseKernels, ARangeOfQueriesHasTheSameWindow) {
    if (!is_forward()) GTEST_SKIP() << "of the forward only";
    Case const c{.cu_seqlens = {0, 130, 400, 401, 900}};
    auto const p = make_problem(c);
    auto const all = windowed_reference(p, 150);
    for (auto const& [begin, end] : {std::pair{100, 140}, {129, 401}, {333, 650}, {777, 900}}) {
        ReferenceResult part;
        part.o = Problem::rows(all.o, begin, end, c.heads * c.head_dim);
        part.lse = Problem::rows(all.lse, begin, end, c.heads);
        expect_right(Problem(p, begin, end, 150).forward(), part, fmt::format("queries {} to {}", begin, end));
    }
}

INSTANTIATE_TEST_SUITE_P(EveryPass, GpuDenseKernels,
                         ::testing::Values(Pass::forward, Pass::backward, Pass::deterministic),
                         [](auto const& info) { return name_of(info.param); });

}  // namespace
}  // namespace perigee
