// The choice of blocks on the GPU, stage by stage: block table, mean keys, scores and the best of them, lists.
#include <gmock/gmock.h>

#include <algorithm>
#include <tuple>

#include "kernels/gpu_moba.h"

namespace perigee {
namespace {

using testing::GpuMoba;
using testing::GpuMobaCase;
using testing::make_gpu_problem;
using GpuMobaSelection = testing::GpuMobaTest;
using GpuRouting = testing::GpuMobaTest;

/// Scores closer than this, relative to the sum of the products' magnitudes, may be ordered either way in fp32.
constexpr double kNearTie = 1e-5;

std::vector<std::vector<int32_t>> const kPacks = {
    {0, 517}, {0, 1, 2, 2, 131, 195, 196, 452}, {0, 0, 64, 192, 192, 255, 700, 700}};

TEST_F(GpuMobaSelection, BlocksRestartAtEveryDocument) {
    for (auto const& cu : kPacks)
        for (int64_t const B : {32, 64, 100}) {
            GpuMobaCase const c{.cu_seqlens = cu, .options = {.block_size = B, .top_k = 3}};
            GpuMoba gpu(make_gpu_problem(c), c.options);
            moba_gate::Stage const stage = gpu.gate();
            moba_gate::build_block_table(stage);
            auto const blocks = gpu.read(stage.scratch.table.blocks, stage.plan.blocks);
            auto const block_of = gpu.read(stage.scratch.table.block_of, cu.back());
            size_t next = 0;
            for (size_t d = 0; d + 1 < cu.size(); ++d) {
                size_t const first = next;
                for (int32_t begin = cu[d]; begin < cu[d + 1]; begin += static_cast<int32_t>(B), ++next) {
                    int32_t const end = std::min(begin + static_cast<int32_t>(B), cu[d + 1]);
                    ASSERT_LT(next, blocks.size());
                    EXPECT_EQ(blocks[next].begin, begin);
                    EXPECT_EQ(blocks[next].end, end);
                    EXPECT_EQ(blocks[next].first, static_cast<int32_t>(first));
                    for (int32_t t = begin; t < end; ++t) EXPECT_EQ(block_of[t], static_cast<int32_t>(next));
                }
            }
            for (; next < blocks.size(); ++next) EXPECT_EQ(blocks[next].begin, blocks[next].end);
        }
}

TEST_F(GpuMobaSelection, CentroidsAreRoundedMeansOfCompleteBlocks) {
    for (int64_t const dim : {32, 64, 96, 128}) {
        GpuMobaCase const c{.cu_seqlens = kPacks[1], .head_dim = dim, .options = {.block_size = 48, .top_k = 2}};
        auto const p = make_gpu_problem(c);
        GpuMoba gpu(p, c.options);
        moba_gate::Stage const stage = gpu.gate();
        moba_gate::build_block_table(stage);
        moba_gate::pool_centroids(stage);
        int64_t const width = c.kv_heads * dim;
        auto const blocks = gpu.read(stage.scratch.table.blocks, stage.plan.blocks);
        auto const means = gpu.read(stage.scratch.centroids, stage.plan.blocks * width);
        for (int64_t b = 0; b < stage.plan.blocks; ++b)
            for (int64_t i = 0; i < width; ++i) {
                double mean = 0;
                bool const complete = blocks[b].end - blocks[b].begin == 48;
                for (int32_t t = blocks[b].begin; complete && t < blocks[b].end; ++t) mean += p.k[t * width + i] / 48;
                ASSERT_NEAR(to_float(means[b * width + i]), mean, std::abs(mean) / 256 + 1e-6) << "block " << b;
            }
    }
}

/// How many rows chose otherwise than the reference, near ties aside.
int64_t wrong_rows(ReferenceProblem const& p, MobaOptions const& options, std::vector<int32_t> const& chosen,
                   int64_t begin = 0) {
    auto const reference = reference_routing(p, options, CentroidRounding::bf16);
    int64_t const S = options.top_k - 1, rows = std::ssize(chosen) / std::max<int64_t>(S, 1);
    int64_t wrong = 0, near = 0;
    for (int64_t row = 0; row < rows; ++row) {
        int64_t const at = row + begin * p.heads;
        if (reference.gap[at] < kNearTie && reference.gap[at] > 0)
            ++near;
        else
            wrong += !std::equal(chosen.begin() + row * S, chosen.begin() + (row + 1) * S,
                                 reference.chosen.begin() + at * S);
    }
    EXPECT_LT(near, rows / 50 + 1) << "too many near ties to judge";
    return wrong;
}

/// The kernels of any GPU, and the best of this one.
std::vector<KernelArch> archs_here() {
    if (kernel_arch() == KernelArch::sm80) return {KernelArch::sm80};
    return {KernelArch::sm80, kernel_arch()};
}

/// wrong_rows of every kernel that there is, added up.
int64_t wrong_choices(GpuMobaCase const& c) {
    auto const p = make_gpu_problem(c);
    int64_t wrong = 0;
    for (KernelArch const arch : archs_here()) wrong += wrong_rows(p, c.options, GpuMoba(p, c.options, arch).select());
    return wrong;
}

TEST_F(GpuMobaSelection, ChoosesWhatTheReferenceChooses) {
    for (int64_t const dim : {32, 64, 96, 128})
        for (auto const& cu : kPacks)
            for (int64_t const top_k : {2, 4, 9})
                EXPECT_EQ(wrong_choices({.cu_seqlens = cu,
                                         .head_dim = dim,
                                         .options = {.block_size = 32, .top_k = top_k},
                                         .seed = static_cast<uint64_t>(dim + top_k)}),
                          0)
                    << dim << " " << top_k;
}

MobaSelection constexpr kSelections[] = {MobaSelection::per_head, MobaSelection::per_group};
char const* name_of(MobaSelection selection) {
    return selection == MobaSelection::per_head ? "a choice per head" : "a choice per group";
}

TEST_F(GpuMobaSelection, ManyBlocksAndManyPlaces) {
    for (MobaSelection const selection : kSelections)
        for (int64_t const dim : {64, 128})
            for (int64_t const top_k : {2, 3, 8, 12, 16, 33, 34, 64})
                EXPECT_EQ(wrong_choices({.cu_seqlens = {0, 30, 1500},
                                         .heads = 3,
                                         .kv_heads = 1,
                                         .head_dim = dim,
                                         .options = {.block_size = 8, .top_k = top_k, .selection = selection},
                                         .seed = static_cast<uint64_t>(top_k)}),
                          0)
                    << name_of(selection) << " " << top_k;
}

TEST_F(GpuMobaSelection, AnyGroupOfHeads) {
    std::vector<int32_t> const documents = {0, 70, 400}, short_ones = {0, 20, 90};  // the reference takes group^2 time
    for (auto const& [heads, kv_heads, top_k] : {std::tuple{5, 5, 4},
                                                 {5, 1, 4},
                                                 {7, 1, 4},
                                                 {40, 1, 4},
                                                 {16, 2, 4},
                                                 {24, 2, 8},
                                                 {12, 1, 6},
                                                 {20, 1, 12},
                                                 {129, 1, 4},
                                                 {300, 1, 4}})
        for (MobaSelection const selection : kSelections)
            EXPECT_EQ(wrong_choices({.cu_seqlens = heads > 100 ? short_ones : documents,
                                     .heads = heads,
                                     .kv_heads = kv_heads,
                                     .options = {.block_size = 4, .top_k = top_k, .selection = selection},
                                     .seed = static_cast<uint64_t>(heads)}),
                      0)
                << name_of(selection) << ", " << heads << " heads of " << kv_heads << ", " << top_k;
}

TEST_F(GpuMobaSelection, ForcedPreviousAndSharedChoice) {
    for (bool const forced : {false, true})
        for (MobaSelection const selection : kSelections)
            for (int64_t const top_k : {2, 5})
                EXPECT_EQ(wrong_choices({.cu_seqlens = {0, 40, 600},
                                         .heads = 6,
                                         .kv_heads = 2,
                                         .options = {.block_size = 8,
                                                     .top_k = top_k,
                                                     .force_previous = forced,
                                                     .selection = selection}}),
                          0)
                    << forced << " " << top_k;
}

TEST_F(GpuMobaSelection, ForcedFirst) {
    for (auto const& cu : {std::vector<int32_t>{0, 40, 600}, {0, 8, 16, 1500}, {0, 5, 5, 300, 1000}})
        for (bool const previous : {false, true})
            for (MobaSelection const selection : kSelections)
                for (int64_t const dim : {64, 96, 128})
                    for (int64_t const top_k : {3, 4, 9, 12, 17, 20})
                        EXPECT_EQ(wrong_choices({.cu_seqlens = cu,
                                                 .heads = 6,
                                                 .kv_heads = 2,
                                                 .head_dim = dim,
                                                 .options = {.block_size = 8,
                                                             .top_k = top_k,
                                                             .force_previous = previous,
                                                             .force_first = true,
                                                             .selection = selection}}),
                                  0)
                            << previous << " " << dim << " " << top_k;
    GpuMobaCase const c{.cu_seqlens = kPacks[2], .options = {.block_size = 32, .top_k = 3, .force_first = true}};
    auto const p = make_gpu_problem(c);
    for (KernelArch const arch : archs_here()) {
        GpuMoba gpu(p, c.options, 100, 333, kAttentionScratchBytes, arch);
        EXPECT_EQ(wrong_rows(p, c.options, gpu.select(), 100), 0);
    }
}

TEST_F(GpuMobaSelection, ARangeOfQueries) {
    for (MobaSelection const selection : kSelections) {
        GpuMobaCase const c{.cu_seqlens = kPacks[2],
                            .heads = 6,
                            .kv_heads = 2,
                            .options = {.block_size = 32, .top_k = 3, .selection = selection}};
        auto const p = make_gpu_problem(c);
        for (auto const& [begin, end] : {std::pair{0, 100}, {100, 333}, {699, 700}, {50, 50}})
            for (KernelArch const arch : archs_here()) {
                GpuMoba gpu(p, c.options, begin, end, kAttentionScratchBytes, arch);
                EXPECT_EQ(wrong_rows(p, c.options, gpu.select(), begin), 0);
            }
    }
}

/// Mean keys as the rule has them: rounded to bf16. [blocks, width], of one document.
std::vector<double> mean_keys(ReferenceProblem const& p, int64_t block_size) {
    int64_t const width = p.kv_heads * p.head_dim, blocks = p.tokens() / block_size;
    std::vector<double> means(static_cast<size_t>(blocks * width));
    for (int64_t b = 0; b < blocks; ++b)
        for (int64_t i = 0; i < width; ++i) {
            double mean = 0;
            for (int64_t t = b * block_size; t < (b + 1) * block_size; ++t)
                mean += p.k[t * width + i] / static_cast<double>(block_size);
            means[b * width + i] = to_float(to_bf16(static_cast<float>(mean)));
        }
    return means;
}

/// Many tiles per multiprocessor and many steps per tile: the choice is right up to scores that fp32 cannot tell apart.
TEST_F(GpuMobaSelection, LongDocumentsChooseTheBestBlocks) {
    for (auto const& [top_k, selection] : {std::tuple{3, MobaSelection::per_head},
                                           {8, MobaSelection::per_head},
                                           {12, MobaSelection::per_head},
                                           {3, MobaSelection::per_group},
                                           {8, MobaSelection::per_group},
                                           {12, MobaSelection::per_group}}) {
        bool const shared = selection == MobaSelection::per_group;
        GpuMobaCase const c{.cu_seqlens = {0, 8000},
                            .heads = 8,
                            .head_dim = 128,
                            .options = {.block_size = 16, .top_k = top_k, .selection = selection},
                            .seed = static_cast<uint64_t>(top_k)};
        auto const p = make_gpu_problem(c);
        auto const chosen = GpuMoba(p, c.options).select();
        auto const means = mean_keys(p, 16);
        int64_t const S = top_k - 1;
        for (int64_t row = 0; row < std::ssize(chosen) / S; row += 97) {
            int64_t const own = row / 8 / 16, g = row % 8 / 4;
            std::vector<double> scores;
            double magnitude = 0;
            for (int64_t b = 0; b < own; ++b) {
                double score = 0, size = 0;
                for (int64_t head = shared ? row / 4 * 4 : row; head < (shared ? row / 4 * 4 + 4 : row + 1); ++head)
                    for (int64_t i = 0; i < 128; ++i) {
                        double const x = p.q[head * 128 + i] * means[b * 256 + g * 128 + i];
                        score += x, size += std::abs(x);
                    }
                scores.push_back(score);
                magnitude = std::max(magnitude, size);
            }
            auto const first = chosen.begin() + row * S;
            int64_t const count = std::min(S, own);
            ASSERT_TRUE(std::is_sorted(first, first + count) &&
                        std::adjacent_find(first, first + count) == first + count);
            ASSERT_EQ(std::count(first, first + S, -1), S - count) << row;
            double worst = std::numeric_limits<double>::infinity();
            for (int64_t s = 0; s < count; ++s) {
                ASSERT_TRUE(first[s] >= 0 && first[s] < own) << row;
                worst = std::min(worst, scores[first[s]]);
                scores[first[s]] = -std::numeric_limits<double>::infinity();
            }
            for (double const left_out : scores) ASSERT_LE(left_out, worst + magnitude * 1e-6) << row;
        }
    }
}

TEST_F(GpuMobaSelection, TheLaterOfEqualScoresWins) {
    for (auto const& [B, top_k] : {std::pair{8, 5}, {1, 9}, {2, 3}}) {
        GpuMobaCase const c{.cu_seqlens = {0, 1000}, .options = {.block_size = B, .top_k = top_k}};
        auto p = make_gpu_problem(c);
        int64_t const width = c.kv_heads * c.head_dim, S = top_k - 1;
        for (size_t i = 0; i < p.k.size(); ++i) p.k[i] = p.k[i % static_cast<size_t>(width)];  // identical keys
        for (KernelArch const arch : archs_here()) {
            auto const chosen = GpuMoba(p, c.options, arch).select();
            for (int64_t t = 0; t < 1000; ++t)
                for (int64_t h = 0; h < c.heads; ++h)
                    for (int64_t s = 0; s < S; ++s) {
                        int64_t const current = t / B, first = std::max<int64_t>(current - S, 0);
                        ASSERT_EQ(chosen[(t * c.heads + h) * S + s], first + s < current ? first + s : -1) << t;
                    }
        }
    }
}

/// A short document and a long one, of many blocks.
GpuMobaCase many_blocks(int32_t tokens, int64_t dim, int64_t top_k) {
    return {.cu_seqlens = {0, 37, tokens},
            .heads = 3,
            .kv_heads = 1,
            .head_dim = dim,
            .options = {.block_size = 4, .top_k = top_k},
            .seed = static_cast<uint64_t>(top_k)};
}

/// Whole numbers in three columns: scores are exact, and few of them differ.
ReferenceProblem of_whole_numbers(GpuMobaCase const& c) {
    auto p = make_gpu_problem(c);
    for (std::vector<double>* const x : {&p.q, &p.k})
        for (size_t i = 0; i < x->size(); ++i)
            (*x)[i] = i % static_cast<size_t>(c.head_dim) < 3 ? std::clamp(std::round((*x)[i]), -2.0, 2.0) : 0;
    return p;
}

/// A thread block takes several tiles, after an odd number of heads too. Scores are exact, so all kernels agree.
TEST_F(GpuMobaSelection, SharedChoicesOfManyTilesPerMultiprocessor) {
    for (int64_t const dim : {64, 128})
        for (int64_t const group : {2, 3}) {
            GpuMobaCase c{.cu_seqlens = {0, 37, 5000},
                          .heads = 16 * group,
                          .kv_heads = 16,
                          .head_dim = dim,
                          .options = {.block_size = 16, .selection = MobaSelection::per_group}};
            auto const p = of_whole_numbers(c);
            for (int64_t const top_k : {3, 8, 16}) {
                c.options.top_k = top_k;
                EXPECT_EQ(GpuMoba(p, c.options).select(), GpuMoba(p, c.options, KernelArch::sm80).select())
                    << dim << ", groups of " << group << ", " << top_k;
            }
        }
}

TEST_F(GpuMobaSelection, OfFewScoresThatDifferTheLaterBlocksWin) {
    for (int64_t const dim : {64, 128})
        for (int64_t const top_k : {2, 3, 6, 8, 9, 12, 16})
            for (MobaSelection const selection : kSelections) {
                GpuMobaCase c = many_blocks(900, dim, top_k);
                c.options.selection = selection;
                auto const p = of_whole_numbers(c);
                for (KernelArch const arch : archs_here())
                    EXPECT_EQ(wrong_rows(p, c.options, GpuMoba(p, c.options, arch).select()), 0) << dim << " " << top_k;
            }
}

/// Every step of candidates is better, or worse, than those before it.
TEST_F(GpuMobaSelection, RisingAndFallingScores) {
    for (int const sign : {1, -1}) {
        GpuMobaCase const c{.cu_seqlens = {0, 500}, .options = {.block_size = 2, .top_k = 8}};
        auto p = make_gpu_problem(c);
        int64_t const width = c.kv_heads * c.head_dim;
        for (double& x : p.q) x = std::abs(x);
        for (size_t i = 0; i < p.k.size(); ++i)
            p.k[i] = sign * static_cast<double>(static_cast<int64_t>(i) / width / 2 + 1) / 512;
        EXPECT_EQ(wrong_rows(p, c.options, GpuMoba(p, c.options).select()), 0) << sign;
    }
}

TEST_F(GpuMobaSelection, NaNIsNeverChosenAndInfinitiesAreScores) {
    for (int64_t const dim : {32, 64}) {
        GpuMobaCase const c{.cu_seqlens = {0, 64},
                            .heads = 1,
                            .kv_heads = 1,
                            .head_dim = dim,
                            .options = {.block_size = 8, .top_k = 4}};
        auto p = make_gpu_problem(c);
        std::fill(p.q.begin(), p.q.end(), 1.0);
        std::fill(p.k.begin(), p.k.end(), 0.0);
        double const infinity = std::numeric_limits<double>::infinity();
        for (int64_t t = 0; t < 8; ++t) {
            p.k[(1 * 8 + t) * dim] = infinity;
            p.k[(2 * 8 + t) * dim] = std::numeric_limits<double>::quiet_NaN();
            p.k[(3 * 8 + t) * dim] = -infinity;
            p.k[(5 * 8 + t) * dim] = std::numeric_limits<double>::quiet_NaN();
        }
        auto const chosen = GpuMoba(p, c.options).select();
        auto const of = [&](int64_t t) {
            return std::vector<int32_t>(chosen.begin() + t * 3, chosen.begin() + t * 3 + 3);
        };
        EXPECT_THAT(of(7), ::testing::ElementsAre(-1, -1, -1));
        EXPECT_THAT(of(24), ::testing::ElementsAre(0, 1, -1));
        EXPECT_THAT(of(32), ::testing::ElementsAre(0, 1, 3));
        EXPECT_THAT(of(63), ::testing::ElementsAre(1, 4, 6));
    }
}

/// Most blocks have scores of NaN or minus infinity, in no order, for many steps of candidates: places stay empty, or
/// hold minus infinities, until there is something better.
TEST_F(GpuMobaSelection, NaNAndInfinitiesAmongManyBlocks) {
    double const infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    for (int64_t const dim : {64, 128})
        for (int64_t const top_k : {2, 3, 6, 8, 9, 12, 16}) {
            GpuMobaCase const c = many_blocks(1300, dim, top_k);
            auto p = of_whole_numbers(c);
            for (std::vector<double>* const x : {&p.q, &p.k})
                for (size_t i = 0; i < x->size(); i += static_cast<size_t>(dim))
                    if ((*x)[i] == 0) (*x)[i] = 1;  // zero times infinity would be NaN
            std::vector<double> const kinds = testing::random_normal<double>(p.tokens(), 5, 1);
            for (int64_t t = 0; t < p.tokens(); ++t) {
                int64_t const document = t < 37 ? 0 : 37, first = document + (t - document) / 4 * 4;
                double const kind = std::abs(kinds[first]);  // one for all keys of a block
                p.k[t * dim] = kind < 0.7 ? nan : kind < 1.6 ? -infinity : kind < 2.3 ? p.k[first * dim] : infinity;
            }
            for (KernelArch const arch : archs_here())
                EXPECT_EQ(wrong_rows(p, c.options, GpuMoba(p, c.options, arch).select()), 0) << dim << " " << top_k;
        }
}

/// Choices made to be hard on the lists.
std::vector<int32_t> adversarial(std::vector<int32_t> const& cu, int64_t B, int64_t heads, int64_t S, int kind) {
    std::vector<int32_t> chosen(static_cast<size_t>(cu.back() * heads * S), -1);
    for (size_t d = 0; d + 1 < cu.size(); ++d)
        for (int64_t t = cu[d]; t < cu[d + 1]; ++t)
            for (int64_t h = 0; h < heads; ++h) {
                int64_t const current = (t - cu[d]) / B;
                int32_t* const row = chosen.data() + (t * heads + h) * S;
                if (current == 0 || kind == 3) continue;
                if (kind == 0) row[0] = 0;                                  // everyone the first block
                if (kind == 1) row[0] = static_cast<int32_t>(current - 1);  // everyone the block before
                if (kind == 2 && (t - cu[d]) % B == 0 && h == 0) row[0] = static_cast<int32_t>(current - 1);
                if (kind == 4)  // the first S blocks
                    for (int64_t s = 0; s < std::min(S, current); ++s) row[s] = static_cast<int32_t>(s);
            }
    return chosen;
}

/// Some of the past blocks of every row, in ascending order: more of a row's places are in use the later it is.
std::vector<int32_t> random_choice(GpuMobaCase const& c, uint64_t seed) {
    int64_t const B = c.options.block_size, S = c.options.top_k - 1;
    std::vector<int32_t> chosen(static_cast<size_t>(c.cu_seqlens.back() * c.heads * S), -1);
    std::vector<double> const random = testing::random_normal<double>(std::ssize(chosen), seed, 1);
    for (size_t d = 0; d + 1 < c.cu_seqlens.size(); ++d)
        for (int64_t t = c.cu_seqlens[d]; t < c.cu_seqlens[d + 1]; ++t)
            for (int64_t row = t * c.heads; row < (t + 1) * c.heads; ++row) {
                int64_t const current = (t - c.cu_seqlens[d]) / B, used = std::min(S, current);
                // One block of each of `used` even parts of the past.
                for (int64_t s = 0; s < used; ++s) {
                    int64_t const from = current * s / used, to = current * (s + 1) / used;
                    double const at = std::abs(std::remainder(random[row * S + s], 2));  // 0 to 1
                    chosen[row * S + s] =
                        static_cast<int32_t>(std::min(to - 1, from + static_cast<int64_t>(at * double(to - from))));
                }
            }
    return chosen;
}

/// Builds the lists of a choice and compares every one with what the choice says.
void expect_routing_of(GpuMobaCase const& c, std::vector<int32_t> const& chosen) {
    GpuMoba gpu(make_gpu_problem(c), c.options);
    gpu.choose(chosen);
    block_sparse::Stage const stage = gpu.stage(AttentionTask::forward);
    block_sparse::build_block_table(stage);
    block_sparse::build_routing(stage);
    int64_t const blocks = stage.plan.blocks, places = gpu.shape().slots_per_kv_head(), chunks = stage.plan.chunks;
    int64_t const T = c.cu_seqlens.back(), G = c.kv_heads, R = c.heads / G, S = c.options.top_k - 1;
    auto const table = gpu.read(stage.scratch.blocks, blocks);
    auto const block_of = gpu.read(stage.scratch.block_of, T);
    auto const begin = gpu.read(stage.scratch.offsets, G * (blocks + 1));
    auto const indices = gpu.read(stage.scratch.indices, G * places);
    auto const starts = gpu.read(stage.scratch.chunk_starts, G * (chunks + 1) * blocks);
    for (int64_t g = 0; g < G; ++g) {
        std::vector<std::vector<uint32_t>> expected(static_cast<size_t>(blocks));
        std::vector<int32_t> expected_starts(static_cast<size_t>((chunks + 1) * blocks));
        for (int64_t row = 0; row < T * R; ++row)
            for (int64_t s = 0; s < S; ++s) {
                int32_t const choice = chosen[(row / R * c.heads + g * R + row % R) * S + s];
                if (choice < 0) continue;
                int64_t const b = table[block_of[row / R]].first + choice;
                expected[b].push_back(static_cast<uint32_t>(row << 6 | s));
                for (int64_t chunk = row / R / stage.plan.chunk_queries; chunk < chunks; ++chunk)
                    ++expected_starts[(chunk + 1) * blocks + b];
            }
        for (int64_t b = 0; b < blocks; ++b) {
            int32_t const from = begin[g * (blocks + 1) + b], to = begin[g * (blocks + 1) + b + 1];
            ASSERT_EQ(to - from, std::ssize(expected[b])) << "block " << b;
            auto const first = indices.begin() + g * places;
            ASSERT_EQ(std::vector<uint32_t>(first + from, first + to), expected[b]) << "block " << b;
        }
        auto const first = starts.begin() + g * (chunks + 1) * blocks;
        ASSERT_EQ(std::vector<int32_t>(first, first + (chunks + 1) * blocks), expected_starts) << "head " << g;
    }
}

TEST_F(GpuRouting, HoldTheRowsThatChoseABlockInOrder) {
    for (auto const& cu : kPacks)
        for (int const kind : {0, 1, 2, 3, 4}) {
            SCOPED_TRACE(kind);
            expect_routing_of({.cu_seqlens = cu, .heads = 6, .options = {.block_size = 32, .top_k = 4}},
                              adversarial(cu, 32, 6, 3, kind));
        }
}

/// More blocks than a thread block counts, more rows than it sorts at a time, more slots than a lane holds.
TEST_F(GpuRouting, OfManyBlocksPlacesAndHeads) {
    for (auto const& [heads, kv_heads, B, top_k] :
         {std::tuple{4, 2, 1, 3}, {4, 1, 1, 8}, {1, 1, 2, 10}, {24, 2, 8, 5}, {17, 1, 64, 7}, {3, 3, 16, 64}}) {
        GpuMobaCase const c{.cu_seqlens = {0, 3, 3, 2700, 3001},
                            .heads = heads,
                            .kv_heads = kv_heads,
                            .head_dim = 32,
                            .options = {.block_size = B, .top_k = top_k}};
        SCOPED_TRACE(top_k);
        expect_routing_of(c, random_choice(c, static_cast<uint64_t>(heads)));
    }
}

}  // namespace
}  // namespace perigee
