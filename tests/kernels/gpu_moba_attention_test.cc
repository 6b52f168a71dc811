// Attention over chosen blocks on the GPU against the fp64 reference, which is given the same choice. The backward is
// given the reference's o and lse, so that a fault of the forward is not seen twice.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "kernels/gpu_moba.h"

namespace perigee {
namespace {

using testing::GpuMoba;
using testing::GpuMobaCase;
using testing::make_gpu_problem;
using testing::relative_error;
using GpuMobaAttention = testing::GpuMobaTest;

constexpr double kTolerance = 5e-3;
constexpr double kLseTolerance = 1e-3;

/// Random choices of up to top_k - 1 past blocks, a third of the places left empty.
std::vector<int32_t> random_choice(GpuMobaCase const& c) {
    int64_t const S = c.options.top_k - 1;
    std::vector<int32_t> chosen(static_cast<size_t>(c.cu_seqlens.back() * c.heads * S), -1);
    Philox const random(c.seed, Purpose::mock_data, 99);
    for (size_t d = 0; d + 1 < c.cu_seqlens.size(); ++d)
        for (int64_t row = c.cu_seqlens[d] * c.heads; row < c.cu_seqlens[d + 1] * c.heads; ++row) {
            int64_t const current = (row / c.heads - c.cu_seqlens[d]) / c.options.block_size;
            std::set<int32_t> blocks;
            for (int64_t s = 0; s < S && current > 0; ++s) {
                uint64_t const index = static_cast<uint64_t>(row * S + s);
                if (random.below(2 * index, 3) > 0)
                    blocks.insert(static_cast<int32_t>(random.below(2 * index + 1, static_cast<uint64_t>(current))));
            }
            std::copy(blocks.begin(), blocks.end(), chosen.begin() + row * S);
        }
    return chosen;
}

std::vector<float> to_float(std::vector<double> const& x) { return {x.begin(), x.end()}; }

double largest_difference(std::vector<float> const& a, std::vector<double> const& b) {
    double most = a.size() == b.size() ? 0 : INFINITY;
    for (size_t i = 0; i < a.size(); ++i) most = std::isnan(a[i]) ? INFINITY : std::max(most, std::abs(a[i] - b[i]));
    return most;
}

void expect_right(GpuMoba& gpu, KernelArch kernels, ReferenceResult const& reference, std::string const& where) {
    std::string const what = where + " by " + name_of(kernels);
    gpu.use(kernels);
    auto const forward = gpu.forward();
    EXPECT_LT(relative_error(forward.o, reference.o), kTolerance) << what;
    EXPECT_LT(largest_difference(forward.lse, reference.lse), kLseTolerance) << what;
    auto const backward = gpu.backward(reference.o, to_float(reference.lse));
    EXPECT_LT(relative_error(backward.dq, reference.dq), kTolerance) << what;
    EXPECT_LT(relative_error(backward.dk, reference.dk), kTolerance) << what;
    EXPECT_LT(relative_error(backward.dv, reference.dv), kTolerance) << what;
}

/// By all kernels that this GPU has.
void expect_right(GpuMoba& gpu, ReferenceResult const& reference, std::string const& what) {
    expect_right(gpu, KernelArch::sm80, reference, what);
    if (kernel_arch() != KernelArch::sm80) expect_right(gpu, kernel_arch(), reference, what);
}

void expect_right(GpuMobaCase const& c, std::vector<int32_t> const& chosen, std::string const& what) {
    auto const p = make_gpu_problem(c);
    GpuMoba gpu(p, c.options);
    gpu.choose(chosen);
    expect_right(gpu, reference_moba(p, c.options.block_size, chosen), what + ": " + to_string(gpu.shape()));
}

TEST_F(GpuMobaAttention, OwnBlocksOnly) {
    for (int64_t const dim : {32, 64, 96, 128})
        for (int64_t const B : {32, 64, 100, 256})
            expect_right({.cu_seqlens = {0, 1, 1, 200, 313},
                          .head_dim = dim,
                          .options = {.block_size = B, .top_k = 1},
                          .seed = static_cast<uint64_t>(dim + B)},
                         {}, "own");
}

TEST_F(GpuMobaAttention, RandomChoices) {
    for (int64_t const dim : {32, 64, 96, 128})
        for (int64_t const B : {32, 64, 96, 128}) {
            GpuMobaCase const c{.cu_seqlens = {0, 300, 301, 301, 630},
                                .head_dim = dim,
                                .options = {.block_size = B, .top_k = 4},
                                .seed = static_cast<uint64_t>(dim + B)};
            expect_right(c, random_choice(c), "random");
        }
}

/// Blocks of more keys than a Hopper kernel keeps at hand, and tiles of keys that end between two tiles.
TEST_F(GpuMobaAttention, LargeBlocks) {
    for (auto const& [dim, B] : {std::pair{128, 320}, {128, 512}, {64, 512}, {64, 640}}) {
        GpuMobaCase const c{.cu_seqlens = {0, 2 * B + 100},
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = dim,
                            .options = {.block_size = B, .top_k = 3},
                            .seed = static_cast<uint64_t>(dim + B)};
        expect_right(c, random_choice(c), "large blocks");
    }
}

/// Too much for the reference: the kernels, which it has judged one by one, must agree.
TEST_F(GpuMobaAttention, ManyTilesPerMultiprocessor) {
    if (kernel_arch() == KernelArch::sm80) GTEST_SKIP() << "one kind of kernels";
    for (int64_t const dim : {64, 128}) {
        GpuMobaCase c{.cu_seqlens = {0, 1700, 1701, 5000}, .heads = 6, .kv_heads = 3, .head_dim = dim};
        auto const p = make_gpu_problem(c);
        for (int64_t const B : {64, 128, 200, 256, 512, 600}) {
            c.options = {.block_size = B, .top_k = 6};
            GpuMoba gpu(p, c.options);
            gpu.choose(random_choice(c));
            auto const best = gpu.forward();
            ASSERT_EQ(gpu.forward(), best) << to_string(gpu.shape());
            gpu.use(KernelArch::sm80);
            auto const other = gpu.forward();
            EXPECT_LT(relative_error(best.o, other.o), kTolerance) << to_string(gpu.shape());
            EXPECT_LT(relative_error(best.lse, other.lse), 1e-5) << to_string(gpu.shape());
        }
    }
}

TEST_F(GpuMobaAttention, AnyGroupSize) {
    for (auto const& [H, G] : {std::pair{4, 4}, {3, 1}, {7, 1}, {8, 2}, {16, 1}}) {
        GpuMobaCase const c{.cu_seqlens = {0, 200, 333},
                            .heads = H,
                            .kv_heads = G,
                            .head_dim = 64,
                            .options = {.block_size = 40, .top_k = 3}};
        expect_right(c, random_choice(c), "group");
    }
}

/// Blocks of one tile of keys, lists of many tiles of rows, of which some end in a part of a tile.
TEST_F(GpuMobaAttention, LargeGroupsWithManyChoices) {
    for (auto const& [H, G, dim] : {std::tuple{9, 1, 128}, {12, 1, 64}, {20, 2, 64}}) {
        GpuMobaCase const c{.cu_seqlens = {0, 130, 700},
                            .heads = H,
                            .kv_heads = G,
                            .head_dim = dim,
                            .options = {.block_size = 128, .top_k = 6},
                            .seed = static_cast<uint64_t>(H)};
        expect_right(c, random_choice(c), "large group");
    }
}

TEST_F(GpuMobaAttention, ManyPlaces) {
    GpuMobaCase const c{.cu_seqlens = {0, 700}, .heads = 2, .options = {.block_size = 8, .top_k = 64}};
    expect_right(c, random_choice(c), "64 blocks");
}

/// Lists of no query up to several tiles, around the edges of the forward's and the backward's tile of rows.
TEST_F(GpuMobaAttention, ListsOfAllLengths) {
    for (int64_t const length : {0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 256, 400}) {
        GpuMobaCase const c{.cu_seqlens = {0, 64, 564},
                            .heads = 1,
                            .kv_heads = 1,
                            .options = {.block_size = 64, .top_k = 2},
                            .seed = static_cast<uint64_t>(length + 1)};
        std::vector<int32_t> chosen(564, -1);
        for (int64_t t = 128; t < 128 + length; ++t) chosen[t] = 0;
        expect_right(c, chosen, "length " + std::to_string(length));
    }
}

TEST_F(GpuMobaAttention, EverybodyChoosesTheFirstBlock) {
    GpuMobaCase const c{.cu_seqlens = {0, 5, 505}, .head_dim = 128, .options = {.block_size = 64, .top_k = 3}};
    std::vector<int32_t> chosen(505 * 4 * 2, -1);
    for (int64_t row = (5 + 64) * 4; row < 505 * 4; ++row) chosen[row * 2] = 0;
    expect_right(c, chosen, "sink");
}

TEST_F(GpuMobaAttention, ManyShortDocuments) {
    GpuMobaCase c{.cu_seqlens = {0}, .options = {.block_size = 32, .top_k = 3}};
    for (int32_t const length : {1, 1, 31, 32, 33, 0, 64, 65, 2, 0, 0, 97, 1}) {
        c.cu_seqlens.push_back(c.cu_seqlens.back() + length);
    }
    expect_right(c, random_choice(c), "short documents");
}

TEST_F(GpuMobaAttention, ItsOwnChoice) {
    for (auto const selection : {MobaSelection::per_head, MobaSelection::per_group}) {
        GpuMobaCase const c{.cu_seqlens = {0, 200, 700},
                            .head_dim = 128,
                            .options = {.block_size = 64, .top_k = 3, .selection = selection}};
        auto const p = make_gpu_problem(c);
        expect_right(c, GpuMoba(p, c.options).select(), "own choice");
    }
}

TEST_F(GpuMobaAttention, FullCoverageIsFullAttention) {
    GpuMobaCase const c{.cu_seqlens = {0, 250, 310}, .head_dim = 128, .options = {.block_size = 64, .top_k = 4}};
    auto const p = make_gpu_problem(c);
    GpuMoba gpu(p, c.options);
    gpu.choose(gpu.select());
    expect_right(gpu, reference_attention(p), "full coverage");
}

TEST_F(GpuMobaAttention, FullAttentionByTheSameKernels) {
    GpuMobaCase const c{.cu_seqlens = {0, 70, 70, 400, 401}, .heads = 6};
    auto const p = make_gpu_problem(c);
    for (int64_t const longest : {330, 1000}) {
        GpuMoba gpu(p, MobaOptions{.block_size = longest, .top_k = 1});
        expect_right(gpu, reference_attention(p), "full");
    }
}

TEST_F(GpuMobaAttention, LargeLogits) {
    GpuMobaCase const c{.cu_seqlens = {0, 300}, .options = {.block_size = 64, .top_k = 3}};
    auto p = make_gpu_problem(c);
    for (double& x : p.q) x *= 64;
    auto const chosen = random_choice(c);
    GpuMoba gpu(p, c.options);
    gpu.choose(chosen);
    auto const reference = reference_moba(p, 64, chosen);
    auto const forward = gpu.forward();
    EXPECT_LT(relative_error(forward.o, reference.o), kTolerance);
    EXPECT_LT(relative_error(forward.lse, reference.lse), 1e-5);
}

/// Tiles of keys reach beyond the end of a block or a document, but what is there weighs nothing, not even infinity.
TEST_F(GpuMobaAttention, InfiniteValuesBeyondABlockAreNotSeen) {
    for (int64_t const dim : {64, 128})
        for (int64_t const B : {100, 300}) {
            auto const end = static_cast<int32_t>(B / 2 * 5);
            GpuMobaCase const c{
                .cu_seqlens = {0, end, end + 200}, .head_dim = dim, .options = {.block_size = B, .top_k = 2}};
            auto const p = make_gpu_problem(c);
            int64_t const row = c.heads * dim;
            std::vector<int32_t> chosen(static_cast<size_t>(p.tokens() * c.heads), -1);
            std::fill(chosen.begin() + 2 * B * c.heads, chosen.begin() + end * c.heads, 0);
            auto const reference = reference_moba(p, B, chosen);
            auto infinite = p;  // in the document's second block, and in all of the next document
            for (int64_t t = B; t < p.tokens(); ++t)
                if (t < 2 * B || t >= end)
                    std::fill_n(infinite.v.begin() + t * c.kv_heads * dim, c.kv_heads * dim, INFINITY);
            GpuMoba gpu(infinite, c.options);
            gpu.choose(chosen);
            for (KernelArch const kernels : {KernelArch::sm80, kernel_arch()}) {
                gpu.use(kernels);
                auto const o = gpu.forward().o;
                for (auto const& [first, last] : {std::pair{int64_t{0}, B}, {2 * B, int64_t{end}}}) {
                    std::vector<double> const got(o.begin() + first * row, o.begin() + last * row);
                    std::vector<double> const want(reference.o.begin() + first * row, reference.o.begin() + last * row);
                    EXPECT_LT(relative_error(got, want), kTolerance) << name_of(kernels) << B << " from " << first;
                }
            }
        }
}

/// Nor do gradients see it, be it values or keys. Documents of two blocks of B and `rest` more tokens, and of `next`.
void infinite_keys_have_no_gradients(int64_t B, int64_t rest, int64_t next) {
    for (int64_t const dim : {64, 128}) {
        auto const end = static_cast<int32_t>(2 * B + rest);
        GpuMobaCase const c{.cu_seqlens = {0, end, end + static_cast<int32_t>(next)},
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = dim,
                            .options = {.block_size = B, .top_k = 2}};
        auto const p = make_gpu_problem(c);
        std::vector<int32_t> chosen(static_cast<size_t>(p.tokens() * c.heads), -1);
        std::fill(chosen.begin() + 2 * B * c.heads, chosen.begin() + end * c.heads, 0);
        auto const truth = reference_moba(p, B, chosen);
        for (auto const member : {&ReferenceProblem::k, &ReferenceProblem::v}) {
            auto infinite = p;  // in the document's second block, and in all of the next document
            for (int64_t t = B; t < p.tokens(); ++t)
                if (t < 2 * B || t >= end) std::fill_n((infinite.*member).begin() + t * dim, dim, INFINITY);
            GpuMoba gpu(infinite, c.options);
            gpu.choose(chosen);
            for (auto const& [kernels, any_order] :
                 {std::pair{KernelArch::sm80, false}, {kernel_arch(), false}, {kernel_arch(), true}}) {
                gpu.use(kernels);
                if (any_order) gpu.add_in_any_order();
                auto const got = gpu.backward(truth.o, {truth.lse.begin(), truth.lse.end()});
                using Numbers = std::vector<double>;
                auto const expect_same = [&](Numbers const& x, Numbers const& want, int64_t width) {
                    for (auto const& [first, last] : {std::pair{int64_t{0}, B}, {2 * B, int64_t{end}}}) {
                        Numbers const part(x.begin() + first * width, x.begin() + last * width);
                        Numbers const of(want.begin() + first * width, want.begin() + last * width);
                        EXPECT_LT(relative_error(part, of), kTolerance) << name_of(kernels) << B << " " << first;
                    }
                };
                expect_same(got.dq, truth.dq, c.heads * dim);
                expect_same(got.dk, truth.dk, dim);
                expect_same(got.dv, truth.dv, dim);
            }
        }
    }
}

TEST_F(GpuMobaAttention, InfiniteKeysBeyondABlockHaveNoGradients) {
    for (int64_t const B : {100, 128, 520}) infinite_keys_have_no_gradients(B, 40, 20);
}
TEST_F(GpuMobaAttention, InfiniteKeysBeyondABlockHaveNoGradientsAtLength) {
    for (int64_t const B : {100, 128, 600}) infinite_keys_have_no_gradients(B, B / 2, 200);
}

/// Rows that see nothing but scores of -infinity have zeros as their result and gradients; to others a block of such
/// scores adds nothing. Here: the first block of the first document, and all of the second.
TEST_F(GpuMobaAttention, ScoresOfMinusInfinityAddNothing) {
    for (int64_t const dim : {64, 128})
        for (int64_t const B : {150, 256}) {
            auto const half = static_cast<int32_t>(2 * B);
            GpuMobaCase const c{
                .cu_seqlens = {0, half, 2 * half}, .head_dim = dim, .options = {.block_size = B, .top_k = 2}};
            auto p = make_gpu_problem(c);
            auto const sees_nothing = [&](int64_t t) { return t < B || t >= half; };
            for (double& x : p.q) x = to_float(to_bf16(static_cast<float>(std::abs(x) * 1e30)));
            for (int64_t t = 0; t < 2 * half; ++t)
                std::fill_n(p.k.begin() + t * c.kv_heads * dim, c.kv_heads * dim, sees_nothing(t) ? -1e30 : 0.0);
            std::vector<int32_t> chosen(2 * half * 4, -1);
            for (int64_t row = 0; row < 2 * half * 4; ++row)
                if (row / 4 % half >= B) chosen[row] = 0;
            for (KernelArch const kernels : {KernelArch::sm80, kernel_arch()}) {
                GpuMoba gpu(p, c.options, kernels), local(p, {.block_size = B, .top_k = 1}, kernels);
                gpu.choose(chosen);
                auto const y = gpu.forward();
                EXPECT_EQ(y, local.forward()) << name_of(kernels);
                auto const g = gpu.backward(y.o, y.lse), own = local.backward(y.o, y.lse);
                for (int64_t row = 0; row < 2 * half * 4; ++row) {
                    bool const nothing = sees_nothing(row / 4);
                    ASSERT_EQ(std::isinf(y.lse[row]), nothing) << row;
                    ASSERT_EQ(y.o[row * dim] == 0, nothing) << row;
                    ASSERT_EQ(g.dq[row * dim], 0) << row;  // of the others too, as their keys are zeros
                    ASSERT_EQ(g.dv[row / 2 * dim] == 0, nothing) << row;
                    ASSERT_TRUE(std::isfinite(g.dk[row / 2 * dim])) << row;
                }
                EXPECT_LT(relative_error(g.dv, own.dv), kTolerance) << name_of(kernels);
            }
        }
}

TEST_F(GpuMobaAttention, KeysNobodyChoseGetOwnGradientsOnly) {
    GpuMobaCase const c{.cu_seqlens = {0, 256}, .options = {.block_size = 64, .top_k = 2}};
    auto const p = make_gpu_problem(c);
    std::vector<int32_t> const nothing(256 * 4, -1);
    GpuMoba routed(p, c.options), own(p, {.block_size = 64, .top_k = 1});
    routed.choose(nothing);
    auto const a = routed.forward(), b = own.forward();
    EXPECT_EQ(a, b);
    EXPECT_EQ(routed.backward(a.o, a.lse), own.backward(b.o, b.lse));
}

TEST_F(GpuMobaAttention, PassesDoNotChangeABit) {
    GpuMobaCase const c{.cu_seqlens = {0, 333, 700}, .options = {.block_size = 32, .top_k = 4}};
    auto const p = make_gpu_problem(c);
    auto const chosen = random_choice(c);
    GpuMoba all(p, c.options);
    all.choose(chosen);
    auto const o = all.forward();
    auto const gradients = all.backward(o.o, o.lse);
    for (size_t const bytes : {testing::least_budget(all.shape()), size_t{300000}, size_t{700000}}) {
        GpuMoba passes(p, c.options, 0, 700, bytes);
        passes.choose(chosen);
        EXPECT_GT(plan_attention(passes.shape(), AttentionTask::forward, bytes).passes(), 1);
        EXPECT_EQ(passes.forward(), o) << bytes;
        EXPECT_EQ(passes.backward(o.o, o.lse), gradients) << bytes;
    }
}

/// What the plan does where a head's q is larger than the cache: too large for a test.
TEST_F(GpuMobaAttention, PassesOfSomeQueriesOfSomeHeadsDoNotChangeABit) {
    GpuMobaCase const c{
        .cu_seqlens = {0, 333, 700}, .heads = 6, .kv_heads = 3, .options = {.block_size = 32, .top_k = 4}};
    auto const p = make_gpu_problem(c);
    GpuMoba gpu(p, c.options);
    gpu.choose(random_choice(c));
    for (KernelArch const kernels : {KernelArch::sm80, kernel_arch()}) {
        gpu.use(kernels);
        auto const all = gpu.forward();
        block_sparse::Stage stage = gpu.stage(AttentionTask::forward);
        stage.plan.pass_kv_heads = stage.plan.pass_chunks = 2;
        ASSERT_EQ(stage.plan.passes(), 2 * 3);
        testing::GpuArray<bf16> const o(gpu.device(), std::ssize(all.o));
        testing::GpuArray<float> const lse(gpu.device(), std::ssize(all.lse));
        block_sparse::build_block_table(stage);
        block_sparse::build_routing(stage);
        for (int64_t i = 0; i < stage.plan.passes(); ++i) {
            block_sparse::Pass const pass = block_sparse::pass_of(stage.plan, i);
            block_sparse::count_tiles(stage, pass);
            block_sparse::attend_selected(stage, pass);
            block_sparse::attend_local(stage, pass, o.data(), lse.data());
        }
        EXPECT_EQ(testing::to_double(o.get()), all.o) << name_of(kernels);
        EXPECT_EQ(lse.get(), all.lse) << name_of(kernels);
    }
}

TEST_F(GpuMobaAttention, KeptRoutingDoesNotChangeABit) {
    for (auto const& [B, top_k] : {std::pair{32, 4}, {128, 3}, {128, 1}, {300, 2}})
        for (auto const& [begin, end, least] : {std::tuple{0, 700, false}, {200, 650, true}})
            for (KernelArch const kernels : {KernelArch::sm80, kernel_arch()}) {
                GpuMobaCase const c{.cu_seqlens = {0, 133, 700}, .options = {.block_size = B, .top_k = top_k}};
                auto const p = make_gpu_problem(c);
                GpuMoba const plain(p, c.options, begin, end, kAttentionScratchBytes, kernels);
                size_t const bytes = least ? testing::least_budget(plain.shape()) : kAttentionScratchBytes;
                GpuMoba kept(p, c.options, begin, end, bytes, kernels);
                GpuMoba again(p, c.options, begin, end, bytes, kernels);
                SCOPED_TRACE(to_string(kept.shape()));
                for (GpuMoba* const gpu : {&kept, &again}) gpu->choose(random_choice(c));
                kept.keep_routing();
                auto const y = kept.forward();
                EXPECT_EQ(y, again.forward());
                auto const routing = kept.routing();
                EXPECT_EQ(kept.backward(y.o, y.lse), again.backward(y.o, y.lse));
                EXPECT_EQ(kept.routing(), routing);
            }
}

TEST_F(GpuMobaAttention, RangesOfQueriesAddUp) {
    for (int64_t const top_k : {1, 3}) {
        GpuMobaCase const c{.cu_seqlens = {0, 100, 500}, .options = {.block_size = 64, .top_k = top_k}};
        auto const p = make_gpu_problem(c);
        auto const chosen = random_choice(c);
        auto const reference = reference_moba(p, 64, chosen);
        GpuMoba::Backward sum;
        std::vector<double> o, dq;
        for (auto const& [begin, end] : {std::pair{0, 77}, {77, 320}, {320, 500}}) {
            GpuMoba part(p, c.options, begin, end, kAttentionScratchBytes);
            part.choose(chosen);
            auto const forward = part.forward();
            sum = part.backward(forward.o, forward.lse, sum);
            o.insert(o.end(), forward.o.begin(), forward.o.end());
            dq.insert(dq.end(), sum.dq.begin(), sum.dq.end());
        }
        EXPECT_LT(relative_error(o, reference.o), kTolerance);
        EXPECT_LT(relative_error(dq, reference.dq), kTolerance);
        EXPECT_LT(relative_error(sum.dk, reference.dk), kTolerance);
        EXPECT_LT(relative_error(sum.dv, reference.dv), kTolerance);
    }
}

TEST_F(GpuMobaAttention, RepeatsBitwise) {
    GpuMobaCase const c{.cu_seqlens = {0, 100, 1000}, .heads = 8, .head_dim = 128};
    auto const p = make_gpu_problem(c);
    GpuMoba gpu(p, c.options);
    auto const chosen = gpu.select();
    gpu.choose(chosen);
    auto const first = gpu.forward();
    auto const gradients = gpu.backward(first.o, first.lse);
    for (int run = 0; run < 5; ++run) {
        ASSERT_EQ(gpu.select(), chosen);
        ASSERT_EQ(gpu.forward(), first);
        ASSERT_EQ(gpu.backward(first.o, first.lse), gradients);
    }
}

}  // namespace
}  // namespace perigee
