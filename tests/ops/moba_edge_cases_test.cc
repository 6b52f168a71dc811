// The cases that reimplementations of MoBA get wrong, one test each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/attention_case.h"

namespace perigee {
namespace {

using namespace testing;
using ::testing::Each;
using ::testing::ElementsAre;

/// The choice of query t, head h.
std::vector<int32_t> choice(std::vector<int32_t> const& chosen, ReferenceProblem const& p, MobaOptions const& moba,
                            int64_t t, int64_t h = 0) {
    auto const first = chosen.begin() + (t * p.heads + h) * (moba.top_k - 1);
    return {first, first + (moba.top_k - 1)};
}

/// One head of size 4 whose queries are (1, 0, 0, 0): the score of a block is the mean of its keys' first numbers.
ReferenceProblem scored(std::vector<double> const& block_scores, int64_t block_size) {
    auto p = make_problem({.cu_seqlens = {0, static_cast<int32_t>(std::ssize(block_scores) * block_size)},
                           .heads = 1,
                           .kv_heads = 1,
                           .head_dim = 4});
    for (int64_t t = 0; t < p.tokens(); ++t)
        for (int64_t i = 0; i < 4; ++i) {
            p.q[t * 4 + i] = i == 0 ? 1 : 0;
            p.k[t * 4 + i] = i == 0 ? block_scores[t / block_size] : 0;
        }
    return p;
}

TEST(MobaEdgeCase, E1TopOneIsBlockLocalAttention) {
    auto const p = make_problem({.cu_seqlens = {0, 40, 75}});
    auto blocks = p;
    blocks.cu_seqlens = {0, 16, 32, 40, 56, 72, 75};
    auto const local = reference_attention(blocks);
    auto const y = HostAttention<float>().attend(p, MobaOptions{.block_size = 16, .top_k = 1});
    EXPECT_LT(worst_error(y, local), kTolerance32);
    EXPECT_GT(worst_error(y, reference_attention(p)), 0.1);
}

TEST(MobaEdgeCase, E2LengthsAroundTheBlockSize) {
    int64_t const B = 8;
    MobaOptions const moba{.block_size = B, .top_k = 3};
    for (int32_t length : {1, 7, 8, 9, 15, 16, 17, 32, 33}) {
        auto const p = make_problem({.cu_seqlens = {0, length}, .seed = static_cast<uint64_t>(length)});
        HostAttention<float> host;
        auto const chosen = host.select(p, moba);
        for (int64_t t = 0; t < length; ++t) {
            auto const blocks = choice(chosen, p, moba, t);
            int64_t const expected = std::min<int64_t>(t / B, 2);
            EXPECT_EQ(std::count_if(blocks.begin(), blocks.end(), [](int32_t b) { return b >= 0; }), expected);
            EXPECT_LT(*std::max_element(blocks.begin(), blocks.end()), std::max<int64_t>(t / B, 1)) << length;
        }
        EXPECT_LT(worst_error(host.attend(p, moba, chosen), reference_moba(p, B, chosen)), kTolerance32) << length;
    }
}

TEST(MobaEdgeCase, E3ABlockBecomesACandidateWithTheFirstTokenAfterIt) {
    MobaOptions const moba{.block_size = 8, .top_k = 2};
    auto const p = scored({1, 2, 3, 4}, 8);
    auto const chosen = HostAttention<float>().select(p, moba);
    for (int32_t block = 0; block < 3; ++block) {
        EXPECT_THAT(choice(chosen, p, moba, (block + 1) * 8 - 1), ElementsAre(block - 1));
        EXPECT_THAT(choice(chosen, p, moba, (block + 1) * 8), ElementsAre(block));
    }
}

TEST(MobaEdgeCase, E4DocumentsOfAtMostTopKBlocksEqualFullAttention) {
    auto const p = make_problem({.cu_seqlens = {0, 96, 97, 130, 226}, .head_dim = 64});
    MobaOptions const moba{.block_size = 32, .top_k = 3};
    for (int64_t length : {96, 1, 33}) ASSERT_TRUE(moba_covers_all(length, moba.block_size, moba.top_k));
    EXPECT_LT(worst_error(HostAttention<float>().attend(p, moba), HostAttention<float>().attend(p)), kTolerance32);
    EXPECT_LT(worst_error(HostAttention<double>().attend(p, moba), HostAttention<double>().attend(p)), kTolerance64);
    // Short documents inside a pack with a long one, too.
    auto const mixed = make_problem({.cu_seqlens = {0, 96, 400}});
    auto const sparse = HostAttention<double>().attend(mixed, moba), full = HostAttention<double>().attend(mixed);
    size_t const first = sparse.o.size() * 96 / 400;
    for (size_t i = 0; i < first; ++i) ASSERT_NEAR(sparse.o[i], full.o[i], 1e-12);
    EXPECT_GT(relative_error(sparse.o, full.o), 0.01);
}

TEST(MobaEdgeCase, E5PackedDocumentsEqualTheSameDocumentsAlone) {
    auto const pack = make_problem({.cu_seqlens = {0, 45, 150, 290}});
    MobaOptions const moba{.block_size = 16, .top_k = 3};
    HostAttention<float> host;
    auto const chosen = host.select(pack, moba);
    auto const y = host.attend(pack, moba, chosen);
    for (size_t d = 0; d < 3; ++d) {
        int64_t const begin = pack.cu_seqlens[d], end = pack.cu_seqlens[d + 1];
        auto const cut = [&](auto const& x) {
            int64_t const row = std::ssize(x) / pack.tokens();
            return std::vector(x.begin() + begin * row, x.begin() + end * row);
        };
        auto alone = pack;
        alone.cu_seqlens = {0, static_cast<int32_t>(end - begin)};
        for (auto* x : {&alone.q, &alone.k, &alone.v, &alone.d_o}) *x = cut(*x);
        auto const single = host.attend(alone, moba);
        EXPECT_EQ(host.select(alone, moba), cut(chosen));
        EXPECT_EQ(single.o, cut(y.o));
        EXPECT_EQ(single.lse, cut(y.lse));
        EXPECT_EQ(single.dq, cut(y.dq));
        EXPECT_EQ(single.dk, cut(y.dk));
        EXPECT_EQ(single.dv, cut(y.dv));
    }
}

TEST(MobaEdgeCase, E6EmptyDocumentsChangeNothing) {
    auto const p = make_problem({.cu_seqlens = {0, 45, 150}});
    auto holes = p;
    holes.cu_seqlens = {0, 0, 0, 45, 45, 150, 150};
    MobaOptions const moba{.block_size = 16, .top_k = 3};
    HostAttention<float> host;
    EXPECT_EQ(host.select(holes, moba), host.select(p, moba));
    EXPECT_EQ(host.attend(holes, moba), host.attend(p, moba));
    auto const nothing = make_problem({.cu_seqlens = {0, 0}});
    EXPECT_TRUE(host.select(nothing, moba).empty());
    EXPECT_TRUE(host.attend(nothing, moba).o.empty());
}

TEST(MobaEdgeCase, E7TheLaterOfEqualScoresWins) {
    MobaOptions const moba{.block_size = 4, .top_k = 3};
    auto const p = scored({7, 7, 7, 7, 7, 7}, 4);
    auto const chosen = HostAttention<float>().select(p, moba);
    EXPECT_THAT(choice(chosen, p, moba, 23), ElementsAre(3, 4));
    auto const q = scored({7, 9, 7, 7, 1, 1}, 4);
    EXPECT_THAT(choice(HostAttention<float>().select(q, moba), q, moba, 23), ElementsAre(1, 3));
    auto const zeros = scored({0.0, -0.0, 0.0, -0.0, -0.0}, 4);  // equal as numbers
    EXPECT_THAT(choice(HostAttention<float>().select(zeros, moba), zeros, moba, 19), ElementsAre(2, 3));
}

TEST(MobaEdgeCase, E8NaNIsNeverChosenAndInfinitiesAreOrdinaryScores) {
    MobaOptions const moba{.block_size = 4, .top_k = 4};
    double const nan = std::nan("");
    for (bool force_previous : {false, true}) {
        MobaOptions options = moba;
        options.force_previous = force_previous;
        // The forced block does not compete, so its NaN does not matter.
        auto const p = scored({nan, -1e30, 1e30, nan, 0, 0}, 4);
        auto const chosen = HostAttention<float>().select(p, options);
        EXPECT_THAT(choice(chosen, p, moba, 16), force_previous ? ElementsAre(1, 2, 3) : ElementsAre(1, 2, -1));
        EXPECT_THAT(choice(chosen, p, moba, 7), force_previous ? ElementsAre(0, -1, -1) : ElementsAre(-1, -1, -1));
    }
    // The same holds for a forced first block.
    for (bool force_previous : {false, true}) {
        MobaOptions const first{.block_size = 4, .top_k = 3, .force_previous = force_previous, .force_first = true};
        auto const p = scored({nan, 3, 1e30, 2, 0, 0}, 4);
        auto const chosen = HostAttention<float>().select(p, first);
        EXPECT_THAT(choice(chosen, p, first, 16), force_previous ? ElementsAre(0, 3) : ElementsAre(0, 2));
        EXPECT_THAT(choice(chosen, p, first, 8), ElementsAre(0, 1));
        EXPECT_THAT(choice(chosen, p, first, 7), ElementsAre(0, -1));
        EXPECT_THAT(choice(chosen, p, first, 3), ElementsAre(-1, -1));
    }
    // Scores that overflow to infinity in fp32.
    auto p = scored({1, -1, 1, 0, 0}, 4);
    for (double& x : p.q) x *= 1e30;
    for (double& x : p.k) x *= 1e30;
    HostAttention<float> host;
    EXPECT_THAT(choice(host.select(p, moba), p, moba, 16), ElementsAre(0, 2, 3));
    MobaOptions const many{.block_size = 4, .top_k = 9};
    EXPECT_THAT(choice(host.select(p, many), p, many, 16), ElementsAre(0, 1, 2, 3, -1, -1, -1, -1));
}

TEST(MobaEdgeCase, E9CentroidsAreMeansInTheKeysOwnPrecision) {
    // The means 1 + 2^-20 and 1 differ in fp32, so the earlier and larger wins; in bf16 they would tie.
    MobaOptions const moba{.block_size = 4, .top_k = 2};
    auto const p = scored({1 + 0x1p-20, 1, 0}, 4);
    EXPECT_THAT(choice(HostAttention<float>().select(p, moba), p, moba, 11), ElementsAre(0));
    EXPECT_EQ(HostAttention<float>().select(p, moba), reference_routing(p, moba, CentroidRounding::f32).chosen);
    EXPECT_NE(HostAttention<float>().select(p, moba), reference_routing(p, moba, CentroidRounding::bf16).chosen);
    // Below the resolution of fp32 they are equal, but not in fp64.
    auto const fine = scored({1 + 0x1p-40, 1, 0}, 4);
    EXPECT_THAT(choice(HostAttention<float>().select(fine, moba), fine, moba, 11), ElementsAre(1));
    EXPECT_THAT(choice(HostAttention<double>().select(fine, moba), fine, moba, 11), ElementsAre(0));
}

TEST(MobaEdgeCase, E10TheChoiceDoesNotDependOnTheScaleOfTheQueries) {
    auto const p = make_problem({.cu_seqlens = {0, 300}});
    auto scaled = p;
    for (double& x : scaled.q) x /= 8;
    MobaOptions const moba{.block_size = 16, .top_k = 4};
    EXPECT_EQ(HostAttention<float>().select(scaled, moba), HostAttention<float>().select(p, moba));
}

TEST(MobaEdgeCase, E11ABlockNobodyChoseGetsNoGradientFromOthers) {
    MobaOptions const moba{.block_size = 4, .top_k = 2};
    auto p = scored({5, -9, 4, 3, 3, 3, 3}, 4);
    HostAttention<float> host;
    auto const chosen = host.select(p, moba);
    // Block 1 is chosen by none; without a gradient from its own queries it has none at all.
    ASSERT_EQ(std::count(chosen.begin(), chosen.end(), 1), 0);
    std::fill(p.d_o.begin() + 16, p.d_o.begin() + 32, 0);
    auto const y = host.attend(p, moba, chosen);
    for (size_t i = 16; i < 32; ++i) EXPECT_TRUE(y.dk[i] == 0 && y.dv[i] == 0) << i;
    EXPECT_LT(worst_error(y, reference_moba(p, 4, chosen)), kTolerance32);
}

TEST(MobaEdgeCase, E12UnequalNumbersOfQueriesAndKeysAreRefused) {
    // In training every query has its key; there is no cache with more keys than queries to align.
    std::vector<float> q(8 * 4), k(12 * 4);
    std::vector<int32_t> chosen(8), borders = {0, 8};
    MobaOptions const moba{.block_size = 4, .top_k = 2};
    EXPECT_THROW(HostAttention<float>().ops().select_blocks({.chosen_THS = {chosen.data(), {8, 1, 1}},
                                                             .q_THK = {q.data(), {8, 1, 4}},
                                                             .k_TGK = {k.data(), {12, 1, 4}},
                                                             .cu_seqlens = borders,
                                                             .selection = moba}),
                 Error);
}

TEST(MobaEdgeCase, E13GrowingADocumentDoesNotChangeEarlierChoices) {
    // Token by token, as in generation: a block's centroid counts from the token after its last, and then for good.
    MobaOptions const moba{.block_size = 8, .top_k = 3};
    auto const whole = make_problem({.cu_seqlens = {0, 50}});
    HostAttention<float> host;
    auto const chosen = host.select(whole, moba);
    for (int32_t length = 1; length < 50; ++length) {
        auto part = whole;
        part.cu_seqlens = {0, length};
        part.q.resize(length * part.heads * part.head_dim);
        part.k.resize(length * part.kv_heads * part.head_dim);
        auto const so_far = host.select(part, moba);
        EXPECT_TRUE(std::equal(so_far.begin(), so_far.end(), chosen.begin())) << length;
    }
}

TEST(MobaEdgeCase, E14PartsOfVeryDifferentWeightMergeByLogSumExp) {
    // Almost all weight lies in one chosen block; a plain sum of normalised parts would give every part the same.
    MobaOptions const moba{.block_size = 4, .top_k = 3};
    auto p = scored({2, 60, 1, 0, 0}, 4);
    for (size_t i = 0; i < p.k.size(); ++i)
        if (i % 4 != 0) p.k[i] = p.d_o[i];  // unseen by the queries; keeps dq away from zero
    HostAttention<float> host;
    auto const y = host.attend(p, moba);
    EXPECT_LT(worst_error(y, reference_moba(p, 4, host.select(p, moba))), kTolerance32);
    double mean = 0;  // of the first numbers of block 1's values, all of whose keys are equal
    for (int64_t u = 4; u < 8; ++u) mean += p.v[u * 4] / 4;
    EXPECT_NEAR(y.o[19 * 4], mean, 1e-5);
    // And the other way round: the chosen blocks weigh nothing beside the own one.
    auto const own = scored({-60, -60, -60, 60}, 4);
    EXPECT_NEAR(host.attend(own, moba).o[12 * 4], own.v[12 * 4], 1e-6);
}

TEST(MobaEdgeCase, AChosenBlockOfMinusInfinityScoresAddsNothing) {
    MobaOptions const moba{.block_size = 4, .top_k = 2};
    auto p = scored({-1e30, 0}, 4);
    for (double& x : p.q) x *= 1e30;
    HostAttention<float> host;
    auto const chosen = host.select(p, moba);
    ASSERT_THAT(choice(chosen, p, moba, 7), ElementsAre(0));
    auto const y = host.attend(p, moba, chosen), local = host.attend(p, MobaOptions{.block_size = 4, .top_k = 1});
    EXPECT_TRUE(std::equal(y.o.begin() + 16, y.o.end(), local.o.begin() + 16));
    EXPECT_TRUE(std::equal(y.lse.begin() + 4, y.lse.end(), local.lse.begin() + 4));
    EXPECT_TRUE(std::equal(y.dv.begin() + 16, y.dv.end(), local.dv.begin() + 16));
}

TEST(MobaEdgeCase, ARowOfMinusInfinityScoresIsZero) {
    MobaOptions const moba{.block_size = 4, .top_k = 2};
    auto p = scored({-1e30, -1e30}, 4);
    for (double& x : p.q) x *= 1e30;
    HostAttention<float> host;
    auto const y = host.attend(p, moba);
    EXPECT_THAT(y.o, Each(0));
    EXPECT_THAT(y.lse, Each(-std::numeric_limits<float>::infinity()));
    for (auto const& gradient : {y.dq, y.dk, y.dv}) EXPECT_THAT(gradient, Each(0));
}

}  // namespace
}  // namespace perigee
