// MoBA on the CPU: attention over a given choice and the choice itself, each against the fp64 reference, and wrong
// references on which the same comparison must fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "ops/attention_case.h"

namespace perigee {
namespace {

using namespace testing;
using ::testing::TestWithParam;

struct MobaCase {
    AttentionCase attention;
    MobaOptions moba;
};
void PrintTo(MobaCase const& c, std::ostream* out) {
    *out << fmt::format("{} heads, {} kv heads, size {}, B {}, k {}", c.attention.heads, c.attention.kv_heads,
                        c.attention.head_dim, c.moba.block_size, c.moba.top_k);
}

/// Rows whose choice differs although the reference's was not close.
int64_t clear_differences(std::vector<int32_t> const& chosen, ReferenceRouting const& reference) {
    int64_t const rows = std::ssize(reference.gap), slots = rows == 0 ? 0 : std::ssize(reference.chosen) / rows;
    if (std::ssize(chosen) != std::ssize(reference.chosen)) return rows;
    int64_t different = 0;
    for (int64_t row = 0; row < rows; ++row)
        if (!(reference.gap[row] < 1e-6))
            different += !std::equal(chosen.begin() + row * slots, chosen.begin() + (row + 1) * slots,
                                     reference.chosen.begin() + row * slots);
    return different;
}

class Moba : public TestWithParam<MobaCase> {
  protected:
    ReferenceProblem const problem_ = make_problem(GetParam().attention);
    MobaOptions const moba_ = GetParam().moba;
    ReferenceRouting const routing_ = reference_routing(problem_, moba_, CentroidRounding::f32);
};

TEST_P(Moba, ChoosesTheBlocksOfTheReference) {
    EXPECT_EQ(clear_differences(HostAttention<float>().select(problem_, moba_), routing_), 0);
    auto const exact = reference_routing(problem_, moba_, CentroidRounding::none);
    EXPECT_EQ(HostAttention<double>().select(problem_, moba_), exact.chosen);
    // The comparison sees nearly every row: near ties are rare.
    EXPECT_LT(std::count_if(exact.gap.begin(), exact.gap.end(), [](double gap) { return gap < 1e-6; }),
              std::ssize(exact.gap) / 100);
}

TEST_P(Moba, AttendsTheChosenBlocks) {
    auto const reference = reference_moba(problem_, moba_.block_size, routing_.chosen);
    EXPECT_LT(worst_error(HostAttention<float>().attend(problem_, moba_, routing_.chosen), reference), kTolerance32);
    EXPECT_LT(worst_error(HostAttention<double>().attend(problem_, moba_, routing_.chosen), reference), kTolerance64);
}

TEST_P(Moba, ResultsAreBitwiseRepeatableOnAnyNumberOfThreads) {
    HostAttention<float> two(2);
    auto const chosen = two.select(problem_, moba_);
    auto const once = two.attend(problem_, moba_, chosen);
    EXPECT_EQ(two.attend(problem_, moba_, chosen), once);
    for (int threads : {1, 5}) {
        HostAttention<float> host(threads);
        EXPECT_EQ(host.select(problem_, moba_), chosen);
        EXPECT_EQ(host.attend(problem_, moba_, chosen), once);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Moba,
    ::testing::Values(
        MobaCase{{.cu_seqlens = kRagged, .heads = 4, .kv_heads = 2, .head_dim = 64, .seed = 1}, {32, 3}},
        MobaCase{{.cu_seqlens = kRagged, .heads = 2, .kv_heads = 2, .head_dim = 32, .seed = 2}, {16, 5}},
        MobaCase{{.cu_seqlens = kRagged, .heads = 3, .kv_heads = 1, .head_dim = 96, .seed = 3}, {64, 2}},
        MobaCase{{.cu_seqlens = {0, 450}, .heads = 2, .kv_heads = 1, .head_dim = 128, .seed = 4}, {7, 4}},
        MobaCase{{.cu_seqlens = {0, 1000}, .heads = 2, .kv_heads = 1, .head_dim = 16, .seed = 5}, {300, 2}},
        MobaCase{{.cu_seqlens = kRagged, .heads = 4, .kv_heads = 1, .head_dim = 32, .seed = 6}, {1, 9}},
        MobaCase{{.cu_seqlens = kRagged, .seed = 7}, {.block_size = 32, .top_k = 3, .force_previous = true}},
        MobaCase{{.cu_seqlens = kRagged, .seed = 8},
                 {.block_size = 32, .top_k = 4, .selection = MobaSelection::per_group}},
        MobaCase{{.cu_seqlens = kRagged, .seed = 10}, {.block_size = 32, .top_k = 3, .force_first = true}},
        MobaCase{{.cu_seqlens = kRagged, .heads = 3, .kv_heads = 1, .seed = 11},
                 {.block_size = 16, .top_k = 4, .force_previous = true, .force_first = true}},
        MobaCase{{.cu_seqlens = kRagged, .seed = 9},
                 {.block_size = 16, .top_k = 2, .force_previous = true, .selection = MobaSelection::per_group}}));

TEST(MobaAttention, AForcedFirstBlockLeavesTheGateASlot) {
    auto const problem = make_problem({.cu_seqlens = {0, 64}, .heads = 1, .kv_heads = 1});
    EXPECT_THROW(HostAttention<float>().select(problem, MobaOptions{.block_size = 16, .top_k = 2, .force_first = true}),
                 Error);
}

TEST(MobaAttention, RefusesAChoiceThatBreaksTheRules) {
    auto const problem = make_problem({.cu_seqlens = {0, 64}, .heads = 1, .kv_heads = 1});
    MobaOptions const moba{.block_size = 16, .top_k = 3};
    auto const good = HostAttention<float>().select(problem, moba);
    EXPECT_NO_THROW(HostAttention<float>().attend(problem, moba, good));
    for (std::array<int32_t, 2> bad : {std::array{1, 0}, {1, 1}, {0, 3}, {2, 9}, {-1, 0}, {0, -2}}) {
        auto chosen = good;
        std::copy(bad.begin(), bad.end(), chosen.end() - 2);
        EXPECT_THROW(HostAttention<float>().attend(problem, moba, chosen), Error) << bad[0] << ", " << bad[1];
    }
}

// What a wrong implementation would compute. Each must be told from the right one by the comparison used above.
class MobaMutation : public ::testing::Test {
  protected:
    ReferenceProblem const problem_ = make_problem({.cu_seqlens = {0, 150, 170}, .seed = 21});
    MobaOptions const moba_{.block_size = 16, .top_k = 3};
    std::vector<int32_t> const chosen_ = reference_routing(problem_, moba_, CentroidRounding::f32).chosen;
    HostAttention<float>::Result const y_ = HostAttention<float>().attend(problem_, moba_, chosen_);
    ReferenceResult const right_ = reference_moba(problem_, moba_.block_size, chosen_);

    int64_t block(int64_t t) const { return (t < 150 ? t : t - 150) / moba_.block_size; }
    /// The key/value row of token u seen by query head h.
    double const* key(std::vector<double> const& x, int64_t u, int64_t h) const {
        return &x[static_cast<size_t>((u * problem_.kv_heads + h * problem_.kv_heads / problem_.heads) * 32)];
    }
    bool fails(ReferenceResult const& mutant) const { return worst_error(y_, mutant) > 100 * kTolerance32; }
};

TEST_F(MobaMutation, TheRightReferencePasses) { EXPECT_LT(worst_error(y_, right_), kTolerance32); }

TEST_F(MobaMutation, AveragingPartialResultsIsCaught) {
    // The own block's softmax and those of the chosen blocks, added without their log-sum-exp weights.
    auto mutant = right_;
    int64_t const H = problem_.heads, S = moba_.top_k - 1, K = problem_.head_dim;
    std::vector<int32_t> const none(chosen_.size(), -1);
    auto const own = reference_moba(problem_, moba_.block_size, none);
    for (int64_t row = 0; row < problem_.tokens() * H; ++row) {
        int64_t const t = row / H, h = row % H, begin = t < 150 ? 0 : 150;
        std::vector<double> sum(own.o.begin() + row * K, own.o.begin() + (row + 1) * K);
        double parts = 1;
        for (int64_t s = 0; s < S && chosen_[row * S + s] >= 0; ++s, ++parts) {
            double total = 0;
            std::vector<double> part(static_cast<size_t>(K));
            int64_t const first = begin + chosen_[row * S + s] * moba_.block_size;
            for (int64_t u = first; u < first + moba_.block_size; ++u) {
                double score = 0;
                for (int64_t i = 0; i < K; ++i) score += problem_.q[row * K + i] * key(problem_.k, u, h)[i];
                double const p = std::exp(problem_.scale * score);
                total += p;
                for (int64_t i = 0; i < K; ++i) part[i] += p * key(problem_.v, u, h)[i];
            }
            for (int64_t i = 0; i < K; ++i) sum[i] += part[i] / total;
        }
        for (int64_t i = 0; i < K; ++i) mutant.o[row * K + i] = sum[i] / parts;
    }
    EXPECT_TRUE(fails(mutant));
}

TEST_F(MobaMutation, ABlockOffByOneIsCaught) {
    auto shifted = chosen_;
    for (int32_t& block : shifted)
        if (block > 0) --block;
    EXPECT_TRUE(fails(reference_moba(problem_, moba_.block_size, shifted)));
    // Even for a single query of a single head.
    auto one = chosen_;
    auto const last = std::find_if(one.rbegin(), one.rend(), [](int32_t block) { return block > 0; });
    ASSERT_NE(last, one.rend());
    --*last;
    ASSERT_FALSE(clear_differences(chosen_, reference_routing(problem_, moba_, CentroidRounding::f32)));
    EXPECT_EQ(clear_differences(one, reference_routing(problem_, moba_, CentroidRounding::f32)), 1);
    EXPECT_TRUE(fails(reference_moba(problem_, moba_.block_size, one)));
}

TEST_F(MobaMutation, ABlockOfTheFutureIsCaught) {
    auto leaking = chosen_;
    int64_t const S = moba_.top_k - 1;
    for (int64_t row = 0; row < problem_.tokens() * problem_.heads; ++row)
        if (leaking[row * S] < 0) leaking[row * S] = static_cast<int32_t>(block(row / problem_.heads) + 1);
    EXPECT_TRUE(fails(reference_moba(problem_, moba_.block_size, leaking)));
}

TEST_F(MobaMutation, OneKeyTooManyInTheOwnBlockIsCaught) {
    auto mutant = right_;  // the next token's key counts where it is in the same block
    int64_t const H = problem_.heads, K = problem_.head_dim;
    for (int64_t row = 0; row < (problem_.tokens() - 1) * H; ++row) {
        int64_t const t = row / H, h = row % H;
        if (t == 149 || block(t + 1) != block(t)) continue;
        double score = 0;
        for (int64_t i = 0; i < K; ++i) score += problem_.q[row * K + i] * key(problem_.k, t + 1, h)[i];
        mutant.lse[row] = std::log(std::exp(mutant.lse[row]) + std::exp(problem_.scale * score));
    }
    EXPECT_TRUE(fails(mutant));
}

TEST_F(MobaMutation, AGradientThroughTheGateIsCaught) {
    // As if every chosen block's centroid score were added to its logits: the gradient of that bias is dS summed over
    // the block, and reaches q through the centroid, and all keys of the block through q.
    auto mutant = right_;
    int64_t const H = problem_.heads, S = moba_.top_k - 1, K = problem_.head_dim, B = moba_.block_size;
    for (int64_t row = 0; row < problem_.tokens() * H; ++row) {
        int64_t const t = row / H, h = row % H, begin = t < 150 ? 0 : 150;
        double const* const q = &problem_.q[static_cast<size_t>(row * K)];
        double const* const d_o = &problem_.d_o[static_cast<size_t>(row * K)];
        for (int64_t s = 0; s < S && chosen_[row * S + s] >= 0; ++s) {
            int64_t const first = begin + chosen_[row * S + s] * B;
            double bias_gradient = 0;
            for (int64_t u = first; u < first + B; ++u) {
                double score = 0, dp = 0;
                for (int64_t i = 0; i < K; ++i) {
                    score += q[i] * key(problem_.k, u, h)[i];
                    dp += d_o[i] * (key(problem_.v, u, h)[i] - right_.o[row * K + i]);
                }
                bias_gradient += std::exp(problem_.scale * score - right_.lse[row]) * dp;
            }
            for (int64_t u = first; u < first + B; ++u)
                for (int64_t i = 0; i < K; ++i) {
                    mutant.dq[row * K + i] += bias_gradient * key(problem_.k, u, h)[i] / static_cast<double>(B);
                    mutant.dk[key(problem_.k, u, h) - problem_.k.data() + i] +=
                        bias_gradient * q[i] / static_cast<double>(B);
                }
        }
    }
    EXPECT_GT(relative_error(y_.dq, mutant.dq), 100 * kTolerance32);
    EXPECT_GT(relative_error(y_.dk, mutant.dk), 100 * kTolerance32);
}

}  // namespace
}  // namespace perigee
