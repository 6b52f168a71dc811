// The reference must itself be right: its gradients against finite differences, its routing against choices made by
// hand.
#include "kernels/moba_gate/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/random.h"

namespace perigee {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

double const kInfinity = std::numeric_limits<double>::infinity();
double const kNaN = std::numeric_limits<double>::quiet_NaN();

ReferenceProblem random_problem(std::vector<int32_t> cu_seqlens, int64_t heads, int64_t kv_heads, int64_t dim) {
    int64_t const T = cu_seqlens.back();
    return {.heads = heads,
            .kv_heads = kv_heads,
            .head_dim = dim,
            .scale = 0.4,
            .cu_seqlens = std::move(cu_seqlens),
            .q = testing::random_normal<double>(T * heads * dim, 11),
            .k = testing::random_normal<double>(T * kv_heads * dim, 12),
            .v = testing::random_normal<double>(T * kv_heads * dim, 13),
            .d_o = testing::random_normal<double>(T * heads * dim, 14)};
}

/// sum(d_o * o), the function whose gradient the reference reports.
double objective(ReferenceProblem const& problem, int64_t block_size, std::vector<int32_t> const& chosen) {
    auto const o = reference_moba(problem, block_size, chosen).o;
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += o[i] * problem.d_o[i];
    return sum;
}

std::vector<double> finite_differences(ReferenceProblem problem, std::vector<double> ReferenceProblem::*input,
                                       int64_t block_size, std::vector<int32_t> const& chosen) {
    double const step = 1e-5;
    std::vector<double> slope;
    for (double& x : problem.*input) {
        double const kept = x;
        x = kept + step;
        double const above = objective(problem, block_size, chosen);
        x = kept - step;
        slope.push_back((above - objective(problem, block_size, chosen)) / (2 * step));
        x = kept;
    }
    return slope;
}

TEST(MobaReference, GradientsMatchFiniteDifferencesWithTheChoiceHeldFixed) {
    auto const problem = random_problem({0, 9, 9, 14}, 4, 2, 3);
    MobaOptions const options{.block_size = 2, .top_k = 3};
    auto const chosen = reference_routing(problem, options, CentroidRounding::none).chosen;
    auto const y = reference_moba(problem, options.block_size, chosen);
    EXPECT_LT(testing::relative_error(y.dq, finite_differences(problem, &ReferenceProblem::q, 2, chosen)), 1e-8);
    EXPECT_LT(testing::relative_error(y.dk, finite_differences(problem, &ReferenceProblem::k, 2, chosen)), 1e-8);
    EXPECT_LT(testing::relative_error(y.dv, finite_differences(problem, &ReferenceProblem::v, 2, chosen)), 1e-8);
}

TEST(MobaReference, LogSumExpAndOutputMatchASoftmaxByHand) {
    ReferenceProblem const problem{.heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 1,
                                   .scale = 2,
                                   .cu_seqlens = {0, 3},
                                   .q = {1, 1, 1},
                                   .k = {0.5, 0.25, 0},
                                   .v = {1, 2, 3},
                                   .d_o = {0, 0, 0}};
    auto const full = reference_attention(problem);
    double const e = std::exp(1.0), r = std::exp(0.5);
    EXPECT_DOUBLE_EQ(full.lse[2], std::log(e + r + 1));
    EXPECT_DOUBLE_EQ(full.o[2], (e + 2 * r + 3) / (e + r + 1));
    // Blocks of one token: the last query chooses block 0 and its own, never block 1.
    auto const sparse = reference_moba(problem, 1, {-1, -1, 0});
    EXPECT_DOUBLE_EQ(sparse.o[1], 2);
    EXPECT_DOUBLE_EQ(sparse.o[2], (e + 3) / (e + 1));
}

TEST(MobaReference, AllBlocksChosenIsFullAttention) {
    auto const problem = random_problem({0, 13, 20}, 2, 1, 4);
    auto const chosen = reference_routing(problem, {.block_size = 3, .top_k = 5}, CentroidRounding::none).chosen;
    auto const all = reference_moba(problem, 3, chosen), full = reference_attention(problem);
    EXPECT_LT(testing::relative_error(all.o, full.o), 1e-14);
    EXPECT_LT(testing::relative_error(all.dk, full.dk), 1e-14);
}

/// One head of dimension 1, blocks of one token: the score of block i is keys[i] for every query.
ReferenceProblem scored(std::vector<double> keys) {
    auto const T = static_cast<int32_t>(keys.size());
    std::vector<double> const ones(keys.size(), 1);
    return {.heads = 1,
            .kv_heads = 1,
            .head_dim = 1,
            .scale = 1,
            .cu_seqlens = {0, T},
            .q = ones,
            .k = std::move(keys),
            .v = ones,
            .d_o = ones};
}

/// What the last query chooses.
std::vector<int32_t> last_choice(std::vector<double> const& keys, MobaOptions const& options,
                                 CentroidRounding rounding = CentroidRounding::none) {
    auto const chosen = reference_routing(scored(keys), options, rounding).chosen;
    return {chosen.end() - (options.top_k - 1), chosen.end()};
}

TEST(MobaRoutingReference, TakesTheBestPastBlocksAndNeverItsOwn) {
    EXPECT_THAT(last_choice({3, 1, 4, 1, 9}, {.block_size = 1, .top_k = 3}), ElementsAre(0, 2));
    EXPECT_THAT(last_choice({3, 9}, {.block_size = 1, .top_k = 4}), ElementsAre(0, -1, -1));
    EXPECT_TRUE(last_choice({3, 9}, {.block_size = 1, .top_k = 1}).empty());
}

TEST(MobaRoutingReference, TheLaterOfEqualScoresWins) {
    EXPECT_THAT(last_choice({2, 5, 2, 2, 0}, {.block_size = 1, .top_k = 3}), ElementsAre(1, 3));
}

TEST(MobaRoutingReference, NaNIsNeverChosenAndInfinitiesAreScores) {
    EXPECT_THAT(last_choice({kNaN, -kInfinity, kInfinity, 0}, {.block_size = 1, .top_k = 4}), ElementsAre(1, 2, -1));
}

TEST(MobaRoutingReference, ForcedPreviousTakesOneOfThePlaces) {
    MobaOptions const forced{.block_size = 1, .top_k = 3, .force_previous = true};
    EXPECT_THAT(last_choice({3, 8, 4, 1, 9}, forced), ElementsAre(1, 3));
    EXPECT_THAT(last_choice({3, 8, 4, kNaN, 9}, forced), ElementsAre(1, 3));
    EXPECT_THAT(last_choice({3, 8, 1, 9}, {.block_size = 1, .top_k = 2, .force_previous = true}), ElementsAre(2));
}

TEST(MobaRoutingReference, ForcedFirstTakesOneOfThePlaces) {
    MobaOptions forced{.block_size = 1, .top_k = 3, .force_first = true};
    EXPECT_THAT(last_choice({3, 8, 4, 1, 9}, forced), ElementsAre(0, 1));
    EXPECT_THAT(last_choice({kNaN, 8, 4, 1, 9}, forced), ElementsAre(0, 1));
    EXPECT_THAT(last_choice({9, 9}, forced), ElementsAre(0, -1));
    EXPECT_THAT(last_choice({9}, forced), ElementsAre(-1, -1));
    forced.force_previous = true;
    EXPECT_THAT(last_choice({3, 8, 4, 1, 9}, forced), ElementsAre(0, 3));
    EXPECT_THAT(last_choice({3, 9}, forced), ElementsAre(0, -1));
    forced.top_k = 4;
    EXPECT_THAT(last_choice({3, 8, 4, 1, 9}, forced), ElementsAre(0, 1, 3));
}

TEST(MobaRoutingReference, RoundingCentroidsToBf16CanMakeATie) {
    MobaOptions const options{.block_size = 1, .top_k = 2};
    EXPECT_THAT(last_choice({1.001, 1, 0}, options, CentroidRounding::f32), ElementsAre(0));
    EXPECT_THAT(last_choice({1.001, 1, 0}, options, CentroidRounding::bf16), ElementsAre(1));
}

TEST(MobaRoutingReference, AGroupSharesTheChoiceOfItsSummedScores) {
    // Head 0 prefers block 0 (5 against 4), head 1 prefers block 1 strongly.
    ReferenceProblem problem{.heads = 2, .kv_heads = 1, .head_dim = 2, .scale = 1, .cu_seqlens = {0, 3}};
    problem.q = {1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1};
    problem.k = {5, 1, 4, 9, 0, 0};
    problem.v = problem.k;
    problem.d_o = problem.q;
    MobaOptions options{.block_size = 1, .top_k = 2};
    EXPECT_THAT(reference_routing(problem, options, CentroidRounding::none).chosen, ElementsAre(-1, -1, 0, 0, 0, 1));
    options.selection = MobaSelection::per_group;
    EXPECT_THAT(reference_routing(problem, options, CentroidRounding::none).chosen, ElementsAre(-1, -1, 0, 0, 1, 1));
}

TEST(MobaRoutingReference, GapTellsNearTiesFromClearChoices) {
    auto const gap = [](std::vector<double> keys, int64_t top_k) {
        return reference_routing(scored(keys), {.block_size = 1, .top_k = top_k}, CentroidRounding::none).gap.back();
    };
    EXPECT_DOUBLE_EQ(gap({4, 2, 1, 0}, 3), 0.25);
    EXPECT_DOUBLE_EQ(gap({4, 2, 2, 0}, 3), 0);
    EXPECT_EQ(gap({4, 2, 1, 0}, 4), kInfinity);
}

TEST(MobaRoutingReference, BlocksRestartAtEveryDocument) {
    auto problem = scored({9, 1, 5, 0, 7, 0});
    problem.cu_seqlens = {0, 2, 2, 6};
    auto const chosen = reference_routing(problem, {.block_size = 1, .top_k = 2}, CentroidRounding::none).chosen;
    EXPECT_THAT(chosen, ElementsAre(-1, 0, -1, 0, 0, 2));
    problem.cu_seqlens = {0, 1, 2, 3, 4, 5, 6};
    EXPECT_THAT(reference_routing(problem, {.block_size = 1, .top_k = 2}, CentroidRounding::none).chosen, Each(-1));
}

/// An empty sum.
TEST(MobaReference, ARowOfMinusInfinityScoresHasNoOutputAndNoGradients) {
    auto p = random_problem({0, 6}, 2, 1, 4);
    for (double& x : p.q) x = std::abs(x);
    std::fill(p.k.begin(), p.k.begin() + 3 * 4, -kInfinity);  // the first of two blocks
    auto const y = reference_moba(p, 3, {});
    auto const first = [](std::vector<double> const& x) { return std::vector(x.begin(), x.begin() + x.size() / 2); };
    EXPECT_THAT(first(y.lse), Each(-kInfinity));
    for (auto const& x : {y.o, y.dq, y.dk, y.dv}) {
        EXPECT_THAT(first(x), Each(0));
        EXPECT_GT(std::abs(x.back()), 0);
    }
}

}  // namespace
}  // namespace perigee
