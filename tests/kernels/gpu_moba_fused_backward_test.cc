// The fused backward on Hopper against the fp64 reference: its blocks are runs of 128 keys, its lists are cut into
// pieces, and its sums can be carried over passes. Given the reference's o and lse, and the routing.
#include <gmock/gmock.h>

#include <algorithm>

#include "kernels/gpu_moba.h"

namespace perigee {
namespace {

using testing::GpuMoba;
using testing::GpuMobaCase;
using testing::make_gpu_problem;
using testing::relative_error;

constexpr double kGradientTolerance = 5e-3;

class GpuMobaFused : public testing::GpuMobaTest {
  protected:
    void SetUp() override {
        GpuMobaTest::SetUp();
        if (!IsSkipped() && kernel_arch() != KernelArch::sm90) GTEST_SKIP() << "no Hopper GPU, or not built for it";
    }
};

/// Choices of the (row, slot) that `choice(token in the document, its block, row, slot)` names, negative for none.
template <class Choice>
std::vector<int32_t> route(GpuMobaCase const& c, Choice choice) {
    int64_t const S = c.options.top_k - 1;
    std::vector<int32_t> chosen(static_cast<size_t>(c.cu_seqlens.back() * c.heads * S), -1);
    for (size_t d = 0; d + 1 < c.cu_seqlens.size(); ++d)
        for (int64_t row = c.cu_seqlens[d] * c.heads; row < c.cu_seqlens[d + 1] * c.heads; ++row) {
            int64_t const t = row / c.heads - c.cu_seqlens[d], block = t / c.options.block_size;
            std::set<int32_t> blocks;
            for (int64_t s = 0; s < S && block > 0; ++s)
                if (int64_t const b = choice(t, block, row, s); b >= 0 && b < block)
                    blocks.insert(static_cast<int32_t>(b));
            std::copy(blocks.begin(), blocks.end(), chosen.begin() + row * S);
        }
    return chosen;
}
std::vector<int32_t> random_route(GpuMobaCase const& c) {
    Philox const random(c.seed, Purpose::mock_data, 77);
    return route(c, [&](int64_t, int64_t block, int64_t row, int64_t s) -> int64_t {
        uint64_t const index = static_cast<uint64_t>(row * 64 + s);
        if (random.below(2 * index, 4) == 0) return -1;
        return static_cast<int64_t>(random.below(2 * index + 1, static_cast<uint64_t>(block)));
    });
}

struct Truth {
    ReferenceProblem problem;
    std::vector<int32_t> chosen;
    ReferenceResult result;
    std::vector<float> lse() const { return {result.lse.begin(), result.lse.end()}; }
};
Truth truth_of(GpuMobaCase const& c, std::vector<int32_t> chosen) {
    ReferenceProblem p = make_gpu_problem(c);
    ReferenceResult r = reference_moba(p, c.options.block_size, chosen);
    return {std::move(p), std::move(chosen), std::move(r)};
}

void expect_close(GpuMoba::Backward const& x, ReferenceResult const& r, std::string const& what) {
    EXPECT_LT(relative_error(x.dq, r.dq), kGradientTolerance) << what;
    EXPECT_LT(relative_error(x.dk, r.dk), kGradientTolerance) << what;
    EXPECT_LT(relative_error(x.dv, r.dv), kGradientTolerance) << what;
}

void expect_gradients(GpuMobaCase const& c, std::vector<int32_t> chosen, std::string const& what) {
    Truth const truth = truth_of(c, std::move(chosen));
    GpuMoba gpu(truth.problem, c.options);
    gpu.choose(truth.chosen);
    ASSERT_EQ(plan_attention(gpu.shape(), AttentionTask::backward).arch, KernelArch::sm90);
    auto const first = gpu.backward(truth.result.o, truth.lse());
    expect_close(first, truth.result, what + ": " + to_string(gpu.shape()));
    EXPECT_EQ(gpu.backward(truth.result.o, truth.lse()), first) << what;
    gpu.add_in_any_order();
    expect_close(gpu.backward(truth.result.o, truth.lse()), truth.result, what + ", any order");
}

TEST_F(GpuMobaFused, OwnBlocksOnly) {
    for (int64_t const dim : {64, 128})
        for (int64_t const B : {128, 256, 1000})
            expect_gradients({.cu_seqlens = {0, 1, 1, 130, 613},
                              .heads = 2,
                              .kv_heads = 1,
                              .head_dim = dim,
                              .options = {.block_size = B, .top_k = 1},
                              .seed = static_cast<uint64_t>(dim + B)},
                             {}, "own");
}

TEST_F(GpuMobaFused, RandomRouting) {
    for (int64_t const dim : {64, 128})
        for (auto const& [B, T] : {std::pair{128, 700}, {256, 900}, {512, 1700}, {520, 1000}}) {
            GpuMobaCase const c{.cu_seqlens = {0, 300, 301, 301, T},
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = dim,
                                .options = {.block_size = B, .top_k = 4},
                                .seed = static_cast<uint64_t>(dim + B)};
            expect_gradients(c, random_route(c), "random");
        }
}

// Tests ...AtLength are too large for racecheck, which runs the small ones beside them.
void any_group_size(int32_t border, int32_t few_heads_tokens, int32_t many_heads_tokens) {
    for (int64_t const dim : {64, 128})
        for (auto const& [H, G] : {std::pair{2, 2}, {3, 1}, {7, 1}, {8, 2}, {11, 1}, {32, 2}, {64, 1}}) {
            int32_t const T = H < 16 ? few_heads_tokens : many_heads_tokens;
            GpuMobaCase const c{.cu_seqlens = {0, border, T},
                                .heads = H,
                                .kv_heads = G,
                                .head_dim = dim,
                                .options = {.block_size = 128, .top_k = 3}};
            expect_gradients(c, random_route(c), "group");
        }
}

TEST_F(GpuMobaFused, AnyGroupSize) { any_group_size(10, 300, 150); }
TEST_F(GpuMobaFused, AnyGroupSizeAtLength) { any_group_size(150, 533, 333); }

/// Of runs that do not fill their blocks, in chains; and more slots than are read at once.
TEST_F(GpuMobaFused, LongAndManyBlocks) {
    for (int64_t const dim : {64, 128})
        for (auto const& [B, T, k] : {std::tuple{700, 1500, 3}, {640, 1300, 2}, {128, 1300, 11}}) {
            GpuMobaCase const c{.cu_seqlens = {0, 77, T + 77},
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = dim,
                                .options = {.block_size = B, .top_k = k},
                                .seed = static_cast<uint64_t>(dim + B)};
            expect_gradients(c, random_route(c), "chains");
        }
}

/// One shorter than, as long as and one longer than one and two tiles of rows, of either head size.
TEST_F(GpuMobaFused, ListsOfAllLengths) {
    for (int64_t const dim : {64, 128})
        for (int64_t const length : {0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
            GpuMobaCase const c{.cu_seqlens = {0, 64, 640},
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = dim,
                                .options = {.block_size = 128, .top_k = 2},
                                .seed = static_cast<uint64_t>(length + 1)};
            expect_gradients(c,
                             route(c, [&](int64_t t, int64_t, int64_t, int64_t) { return t < 128 + length ? 0 : -1; }),
                             "length " + std::to_string(length));
        }
}

/// Long lists are cut into pieces, whose sums are added.
TEST_F(GpuMobaFused, EverybodyChoosesTheFirstBlock) {
    for (int64_t const dim : {64, 128})
        for (int64_t const B : {128, 256}) {
            GpuMobaCase const c{
                .cu_seqlens = {0, 5, 1105}, .heads = 8, .head_dim = dim, .options = {.block_size = B, .top_k = 3}};
            expect_gradients(c, route(c, [&](int64_t, int64_t, int64_t, int64_t s) { return s == 0 ? 0 : -1; }),
                             "sink");
        }
}

TEST_F(GpuMobaFused, OneRowOfEveryList) {
    GpuMobaCase const c{.cu_seqlens = {0, 1000}, .head_dim = 128, .options = {.block_size = 128, .top_k = 3}};
    expect_gradients(c,
                     route(c, [&](int64_t t, int64_t block, int64_t row,
                                  int64_t s) { return t % 128 == 7 && row % c.heads == 0 && s == 0 ? block - 1 : -1; }),
                     "one row");
}

/// A budget with which the backward takes that many passes, or more; there must be one.
size_t budget_of_passes(BlockSparseShape const& shape, int64_t passes) {
    for (size_t const bytes : testing::shrinking_budgets(shape, AttentionTask::backward))
        if (plan_attention(shape, AttentionTask::backward, bytes).passes() >= passes) return bytes;
    fail(Category::internal, "no budget makes {} passes of {}", passes, to_string(shape));
}

/// Split KV tiles, carried sums, sums in dq and a KV tile cut short, small enough for compute-sanitizer.
TEST_F(GpuMobaFused, SmallForSanitizers) {
    for (auto const& [dim, k] : {std::pair{64, 2}, {128, 2}, {128, 33}}) {
        GpuMobaCase const c{.cu_seqlens = {0, 150, 450},
                            .heads = 16,
                            .kv_heads = 1,
                            .head_dim = dim,
                            .options = {.block_size = 128, .top_k = k}};
        Truth const truth = truth_of(c, route(c, [](int64_t, int64_t, int64_t, int64_t s) { return s == 0 ? 0 : -1; }));
        for (bool const deterministic : {true, false})
            for (int64_t const passes : {1, 2}) {
                BlockSparseShape shape = GpuMoba(truth.problem, c.options).shape();
                shape.deterministic = deterministic;
                size_t const bytes = budget_of_passes(shape, passes);
                BlockSparsePlan const plan = plan_attention(shape, AttentionTask::backward, bytes);
                EXPECT_EQ(plan.arch, KernelArch::sm90) << to_string(plan);
                EXPECT_EQ(plan.adds_to_dq, !deterministic && passes == 1 && k == 2) << to_string(plan);
                GpuMoba gpu(truth.problem, c.options, 0, 450, bytes);
                if (!deterministic) gpu.add_in_any_order();
                gpu.choose(truth.chosen);
                expect_close(gpu.backward(truth.result.o, truth.lse()), truth.result, to_string(plan));
            }
    }
}

TEST_F(GpuMobaFused, ManyShortDocuments) {
    for (int64_t const dim : {64, 128}) {
        GpuMobaCase c{.cu_seqlens = {0}, .head_dim = dim, .options = {.block_size = 128, .top_k = 3}};
        for (int32_t const length : {1, 1, 127, 128, 129, 0, 256, 257, 2, 0, 0, 385, 1})
            c.cu_seqlens.push_back(c.cu_seqlens.back() + length);
        expect_gradients(c, random_route(c), "short documents");
    }
}

/// Several items for every multiprocessor: too much for the reference, so against the kernels it has proven.
void agrees_on_many_items(GpuMobaCase const& c) {
    auto const p = make_gpu_problem(c);
    GpuMoba gpu(p, c.options);
    gpu.choose(random_route(c));
    auto const forward = gpu.forward();
    auto const fused = gpu.backward(forward.o, forward.lse);
    EXPECT_EQ(gpu.backward(forward.o, forward.lse), fused);
    gpu.add_in_any_order();
    auto const any_order = gpu.backward(forward.o, forward.lse);
    gpu.use(KernelArch::sm80);
    auto const parts = gpu.backward(forward.o, forward.lse);
    for (GpuMoba::Backward const& x : {fused, any_order})
        for (auto part : {&GpuMoba::Backward::dq, &GpuMoba::Backward::dk, &GpuMoba::Backward::dv})
            EXPECT_LT(relative_error(x.*part, parts.*part), kGradientTolerance) << to_string(gpu.shape());
}

/// Most of them documents of a few tokens.
TEST_F(GpuMobaFused, AgreesWithTheOtherKernelsOnManyItems) {
    for (int64_t const dim : {64, 128}) {
        GpuMobaCase c{.cu_seqlens = {0, 900}, .head_dim = dim, .options = {.block_size = 128, .top_k = 4}};
        for (int i = 0; i < 300; ++i) c.cu_seqlens.push_back(c.cu_seqlens.back() + 1 + i % 3);
        agrees_on_many_items(c);
    }
}

TEST_F(GpuMobaFused, AgreesWithTheOtherKernelsOnManyItemsAtLength) {
    for (int64_t const dim : {64, 128})
        for (int64_t const B : {128, 512})
            agrees_on_many_items({.cu_seqlens = {0, 900, 6000},
                                  .heads = 8,
                                  .kv_heads = 8,
                                  .head_dim = dim,
                                  .options = {.block_size = B, .top_k = 4}});
}

TEST_F(GpuMobaFused, FullCoverageIsFullAttention) {
    for (int64_t const dim : {64, 128}) {
        GpuMobaCase const c{.cu_seqlens = {0, 500, 610}, .head_dim = dim, .options = {.block_size = 128, .top_k = 4}};
        auto const p = make_gpu_problem(c);
        auto const reference = reference_attention(p);
        GpuMoba gpu(p, c.options);
        gpu.choose(gpu.select());
        expect_close(gpu.backward(reference.o, {reference.lse.begin(), reference.lse.end()}), reference, "coverage");
    }
}

/// Passes change the splits of KV tiles, hence the order in which dk and dv are summed; of dq not a bit. Documents
/// begin where passes do not, hence passes begin inside of KV tiles.
void passes_give_the_same(int32_t border, int32_t tokens, int64_t heads,
                          std::vector<std::pair<int64_t, int64_t>> const& dims_and_blocks) {
    bool carried = false;
    for (auto const& [dim, B] : dims_and_blocks) {
        GpuMobaCase const c{.cu_seqlens = {0, border, tokens},
                            .heads = heads,
                            .head_dim = dim,
                            .options = {.block_size = B, .top_k = 3}};
        Truth const truth = truth_of(c, random_route(c));
        GpuMoba all(truth.problem, c.options);
        all.choose(truth.chosen);
        auto const gradients = all.backward(truth.result.o, truth.lse());
        expect_close(gradients, truth.result, "one pass");
        auto const budgets = testing::shrinking_budgets(all.shape(), AttentionTask::backward);
        ASSERT_GT(budgets.size(), 1u);
        for (size_t const bytes : {budgets[1], budgets[budgets.size() / 2], budgets.back()}) {
            GpuMoba passes(truth.problem, c.options, 0, tokens, bytes);
            passes.choose(truth.chosen);
            BlockSparsePlan const plan = plan_attention(passes.shape(), AttentionTask::backward, bytes);
            ASSERT_EQ(plan.arch, KernelArch::sm90) << to_string(plan);
            auto const parts = passes.backward(truth.result.o, truth.lse());
            EXPECT_EQ(parts.dq, gradients.dq) << to_string(plan);
            expect_close(parts, truth.result, to_string(plan));
            EXPECT_EQ(passes.backward(truth.result.o, truth.lse()), parts) << to_string(plan);
            carried = carried || plan.carried_tiles > 0;
        }
    }
    EXPECT_TRUE(carried);
}

TEST_F(GpuMobaFused, PassesGiveTheSame) { passes_give_the_same(133, 900, 2, {{128, 384}, {64, 512}}); }
TEST_F(GpuMobaFused, PassesGiveTheSameAtLength) {
    passes_give_the_same(433, 1300, 8, {{64, 256}, {128, 256}, {128, 384}, {64, 512}});
}

/// The backward of ranges of queries one after the other, which add to the same dk and dv; `least`: of scratch memory.
GpuMoba::Backward backward_of_ranges(GpuMobaCase const& c, Truth const& truth, std::vector<int64_t> const& borders,
                                     bool least, bool deterministic) {
    GpuMoba::Backward sum;
    std::vector<double> dq;
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
        BlockSparseShape shape = GpuMoba(truth.problem, c.options, borders[i], borders[i + 1]).shape();
        shape.deterministic = deterministic;
        size_t const bytes = least ? testing::least_budget(shape) : kAttentionScratchBytes;
        GpuMoba part(truth.problem, c.options, borders[i], borders[i + 1], bytes);
        if (!deterministic) part.add_in_any_order();
        part.choose(truth.chosen);
        auto const of = [&](std::vector<double> const& x, int64_t width) {
            return std::vector<double>(x.begin() + borders[i] * width, x.begin() + borders[i + 1] * width);
        };
        auto const lse = of(truth.result.lse, c.heads);
        sum = part.backward(of(truth.result.o, c.heads * c.head_dim), {lse.begin(), lse.end()}, sum);
        dq.insert(dq.end(), sum.dq.begin(), sum.dq.end());
    }
    sum.dq = dq;
    return sum;
}

/// Rows see too many KV tiles to add to dq, and nearly all select the first block, which is split in every pass.
TEST_F(GpuMobaFused, SplitsOfManyPassesAtLength) {
    for (auto const& [dim, B, k] : {std::tuple{64, 128, 33}, {128, 512, 9}, {128, 700, 7}}) {
        GpuMobaCase const c{.cu_seqlens = {0, 133, 1500},
                            .heads = 16,
                            .kv_heads = 2,
                            .head_dim = dim,
                            .options = {.block_size = B, .top_k = k}};
        Truth const truth = truth_of(c, route(c, [](int64_t t, int64_t block, int64_t row, int64_t s) -> int64_t {
                                         if (s == 0) return row % 5 == 0 ? -1 : 0;
                                         return s == 1 ? t % block : -1;
                                     }));
        BlockSparseShape shape = GpuMoba(truth.problem, c.options).shape();
        shape.deterministic = false;
        size_t const bytes = budget_of_passes(shape, 4);
        BlockSparsePlan const plan = plan_attention(shape, AttentionTask::backward, bytes);
        ASSERT_FALSE(plan.adds_to_dq) << to_string(plan);
        ASSERT_GT(plan.carried_tiles, 0) << to_string(plan);
        GpuMoba passes(truth.problem, c.options, 0, 1500, bytes);
        passes.add_in_any_order();
        passes.choose(truth.chosen);
        expect_close(passes.backward(truth.result.o, truth.lse()), truth.result, to_string(plan));
        expect_close(backward_of_ranges(c, truth, {0, 700, 1500}, false, false), truth.result, to_string(plan));
    }
}

TEST_F(GpuMobaFused, RangesOfQueriesAddUp) {
    for (bool const deterministic : {true, false})
        for (bool const least : {false, true})
            for (int64_t const top_k : {1, 3}) {
                GpuMobaCase const c{.cu_seqlens = {0, 100, 900}, .options = {.block_size = 128, .top_k = top_k}};
                Truth const truth = truth_of(c, random_route(c));
                expect_close(backward_of_ranges(c, truth, {0, 77, 520, 900}, least, deterministic), truth.result,
                             deterministic ? "ranges" : "ranges, any order");
            }
}

/// Of queries from `first` on.
double error_of_rows(std::vector<double> const& x, std::vector<double> const& truth, int64_t first) {
    return relative_error(std::vector<double>(x.begin() + first, x.end()),
                          std::vector<double>(truth.begin() + first, truth.end()));
}

/// Rows that see as many KV tiles as they can, each of which adds to their dq: their errors are no larger.
TEST_F(GpuMobaFused, ManyKvTilesAddToDq) {
    for (auto const& [dim, B, k] :
         {std::tuple{64, 128, 8}, {128, 128, 8}, {128, 128, 16}, {128, 512, 3}, {64, 1024, 3}, {128, 1024, 2}}) {
        auto const T = static_cast<int32_t>(B * k + 200);
        GpuMobaCase const c{.cu_seqlens = {0, T},
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = dim,
                            .options = {.block_size = B, .top_k = k},
                            .seed = static_cast<uint64_t>(dim + B)};
        Truth const truth =
            truth_of(c, route(c, [&](int64_t, int64_t block, int64_t, int64_t s) { return block - 1 - s; }));
        GpuMoba gpu(truth.problem, c.options);
        gpu.choose(truth.chosen);
        int64_t const full = (T - 200 - B) * c.heads * dim;  // rows that see k blocks
        auto const partials = gpu.backward(truth.result.o, truth.lse());
        gpu.add_in_any_order();
        BlockSparsePlan const plan = plan_attention(gpu.shape(), AttentionTask::backward);
        ASSERT_TRUE(plan.adds_to_dq && plan.partial.bytes == 0) << to_string(plan);
        auto const sums = gpu.backward(truth.result.o, truth.lse());
        expect_close(sums, truth.result, to_string(plan));
        EXPECT_LT(error_of_rows(sums.dq, truth.result.dq, full),
                  1.1 * error_of_rows(partials.dq, truth.result.dq, full))
            << to_string(plan);
    }
}

/// Sums are kept in fp16, whose range is small: of gradients of any size, some tokens' much smaller than others', with
/// outliers among keys and values. Of each size of gradient on its own.
TEST_F(GpuMobaFused, SumsInDqHaveTheRangeOfTheGradients) {
    GpuMobaCase const c{.cu_seqlens = {0, 100, 900}, .head_dim = 128, .options = {.block_size = 128, .top_k = 3}};
    int64_t const row = c.heads * c.head_dim;
    auto const size_of = [&](int64_t i) { return i / row % 3; };
    for (int const exponent : {-50, -20, 0, 60}) {
        ReferenceProblem p = make_gpu_problem(c);
        for (int64_t i = 0; i < std::ssize(p.d_o); ++i)
            p.d_o[i] = std::ldexp(p.d_o[i], exponent - 20 * static_cast<int>(size_of(i)));
        for (int64_t i = 0; i < c.kv_heads * c.head_dim; ++i) {
            p.v[300 * c.kv_heads * c.head_dim + i] *= 256;
            p.k[500 * c.kv_heads * c.head_dim + i] *= 16;
        }
        auto const chosen = random_route(c);
        ReferenceResult const truth = reference_moba(p, c.options.block_size, chosen);
        std::vector<float> const lse(truth.lse.begin(), truth.lse.end());
        GpuMoba gpu(p, c.options);
        gpu.choose(chosen);
        auto const partials = gpu.backward(truth.o, lse).dq;
        gpu.add_in_any_order();
        auto const sums = gpu.backward(truth.o, lse).dq;
        for (int64_t size = 0; size < 3; ++size) {
            auto const of_size = [&](std::vector<double> const& x) {
                std::vector<double> some;
                for (int64_t i = 0; i < std::ssize(x); ++i)
                    if (size_of(i) == size) some.push_back(std::ldexp(x[i], 20 * static_cast<int>(size) - exponent));
                return some;
            };
            double const with_partials = relative_error(of_size(partials), of_size(truth.dq));
            EXPECT_LT(with_partials, 2 * kGradientTolerance);  // outliers leave little of small differences
            EXPECT_LT(relative_error(of_size(sums), of_size(truth.dq)), 1.1 * with_partials)
                << "2^" << exponent << ", size " << size;
        }
    }
}

TEST_F(GpuMobaFused, RepeatsBitwise) {
    for (int64_t const dim : {64, 128}) {
        GpuMobaCase const c{
            .cu_seqlens = {0, 100, 1500}, .heads = 8, .head_dim = dim, .options = {.block_size = 128, .top_k = 4}};
        Truth const truth = truth_of(c, random_route(c));
        GpuMoba gpu(truth.problem, c.options);
        gpu.choose(truth.chosen);
        auto const first = gpu.backward(truth.result.o, truth.lse());
        for (int run = 0; run < 20; ++run) ASSERT_EQ(gpu.backward(truth.result.o, truth.lse()), first);
    }
}

}  // namespace
}  // namespace perigee
