// Shares of full attention's softmax inside selected blocks, against the definition.
#include "eval/mass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "support/random.h"

namespace perigee {
namespace {

constexpr int64_t kHeads = 4, kGroups = 2, kDim = 8, kTokens = 70, kSize = 8;
constexpr BlockBudget kBudget{.block_size = kSize, .top_k = 3};
std::vector<int32_t> const kDocuments = {0, 20, 70};

Batch batch(std::vector<int32_t> documents) {
    auto const tokens = static_cast<size_t>(documents.back());
    return {.ids_T = std::vector<int32_t>(tokens),
            .targets_T = std::vector<int32_t>(tokens),
            .weights_T = std::vector<float>(tokens, 1),
            .positions_T = {},
            .cu_seqlens = std::move(documents)};
}

AttentionInputs inputs() {
    auto const floats = [](int64_t count, uint64_t seed) { return testing::random_normal<float>(count, seed); };
    return {.q_THK = floats(kTokens * kHeads * kDim, 1),
            .k_TGK = floats(kTokens * kGroups * kDim, 2),
            .q_shape = {kTokens, kHeads, kDim},
            .k_shape = {kTokens, kGroups, kDim},
            .scale = 0.7};
}

/// Softmax of every key up to the token, of one head, key by key.
std::vector<double> softmax(AttentionInputs const& in, int64_t begin, int64_t token, int64_t head) {
    std::vector<double> weights;
    for (int64_t j = begin; j <= token; ++j) {
        double dot = 0;
        for (int64_t i = 0; i < kDim; ++i)
            dot += double{in.q_THK[static_cast<size_t>((token * kHeads + head) * kDim + i)]} *
                   in.k_TGK[static_cast<size_t>((j * kGroups + head / 2) * kDim + i)];
        weights.push_back(std::exp(in.scale * dot));
    }
    double const total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& weight : weights) weight /= total;
    return weights;
}

TEST(Mass, QueriesHaveMorePastBlocksThanSlotsAndAreSpreadEvenly) {
    EXPECT_EQ(choosing_queries(batch(kDocuments), kBudget, 1), (std::vector<int64_t>{20 + 24 + 13}));
    std::vector<int64_t> all(26);
    std::iota(all.begin(), all.end(), 44);  // none of the first document, whose last token has two blocks before it
    EXPECT_EQ(choosing_queries(batch(kDocuments), kBudget, 1000), all);
    Batch padded = batch(kDocuments);
    std::fill(padded.weights_T.begin() + 20, padded.weights_T.end(), 0.0f);
    EXPECT_TRUE(choosing_queries(padded, kBudget, 5).empty());
    padded.weights_T[30] = padded.weights_T[50] = padded.weights_T[52] = 1;  // 30 has no block too many
    EXPECT_EQ(choosing_queries(padded, kBudget, 5), (std::vector<int64_t>{50, 52}));
    EXPECT_TRUE(choosing_queries(batch({0, 24, 48}), kBudget, 5).empty());
}

TEST(Mass, IsTheSoftmaxInsideTheBlocks) {
    AttentionInputs const in = inputs();
    auto const queries = choosing_queries(batch(kDocuments), kBudget, 7);
    std::vector<Selection> const rules = {NearestBlocks{kSize, 3}, MobaOptions{.block_size = kSize, .top_k = 3}};
    auto const found = MassMeter().measure(in, kDocuments, queries, rules, kBudget);
    double local = 0, nearest = 0, best = 0;
    for (int64_t const token : queries)
        for (int64_t head = 0; head < kHeads; ++head) {
            auto const weights = softmax(in, 20, token, head);
            std::vector<double> blocks(static_cast<size_t>((token - 20) / kSize + 1));
            for (size_t j = 0; j < weights.size(); ++j) blocks[j / kSize] += weights[j];
            local += blocks.back();
            nearest += blocks.back() + blocks[blocks.size() - 2] + blocks[blocks.size() - 3];
            std::vector<double> past(blocks.begin(), blocks.end() - 1);
            std::ranges::sort(past, std::greater());
            best += blocks.back() + past[0] + past[1];
        }
    ASSERT_EQ(std::ssize(queries), 7);
    ASSERT_EQ(found.size(), 4u);
    EXPECT_NEAR(found[0], local, 1e-5);
    EXPECT_NEAR(found[1], nearest, 1e-5);
    EXPECT_NEAR(found.back(), best, 1e-5);
    EXPECT_GT(found[2], found[0]);
    EXPECT_LT(found[2], found.back());
}

TEST(Mass, OfHalfTheHeadsAddsUpToThatOfAll) {
    AttentionInputs const all = inputs();
    auto const queries = choosing_queries(batch(kDocuments), kBudget, 9);
    std::vector<Selection> const rules = {RandomBlocks{.block_size = kSize, .top_k = 3, .seed = 4},
                                          MobaOptions{.block_size = kSize, .top_k = 3, .force_first = true}};
    std::vector<double> sum(4);
    for (int64_t half : {0, 1}) {
        AttentionInputs part{.q_shape = {kTokens, kHeads / 2, kDim},
                             .k_shape = {kTokens, kGroups / 2, kDim},
                             .first_head = half * kHeads / 2,
                             .scale = all.scale};
        auto const take = [half](std::vector<float> const& from, int64_t width, std::vector<float>& to) {
            for (int64_t t = 0; t < kTokens; ++t) {
                auto const begin = from.begin() + (2 * t + half) * width / 2;
                to.insert(to.end(), begin, begin + width / 2);
            }
        };
        take(all.q_THK, kHeads * kDim, part.q_THK), take(all.k_TGK, kGroups * kDim, part.k_TGK);
        auto const shares = MassMeter().measure(part, kDocuments, queries, rules, kBudget);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += shares[i];
    }
    auto const whole = MassMeter().measure(all, kDocuments, queries, rules, kBudget);
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], whole[i], 1e-6) << i;
}

TEST(Mass, OfABlockThatTheGateMustFindIsTheBestPossible) {
    AttentionInputs in = inputs();
    // The keys of one block per head group are what the queries look for.
    for (int64_t j = 28; j < 36; ++j)
        for (int64_t i = 0; i < kGroups * kDim; ++i)
            in.k_TGK[static_cast<size_t>(j * kGroups * kDim + i)] =
                3 * in.q_THK[static_cast<size_t>(60 * kHeads * kDim + i)];
    for (int64_t head = 0; head < kHeads; ++head)
        for (int64_t i = 0; i < kDim; ++i)
            in.q_THK[static_cast<size_t>((60 * kHeads + head) * kDim + i)] =
                in.k_TGK[static_cast<size_t>((28 * kGroups + head / 2) * kDim + i)] / 3;
    std::vector<int64_t> const query = {60};
    std::vector<Selection> const rules = {MobaOptions{.block_size = kSize, .top_k = 2}, NearestBlocks{kSize, 2}};
    auto const found = MassMeter().measure(in, kDocuments, query, rules, {.block_size = kSize, .top_k = 2});
    EXPECT_NEAR(found[1], found.back(), 1e-9);
    EXPECT_GT(found[1], 0.9 * kHeads);
    EXPECT_LT(found[2], 0.1 * kHeads);
}

}  // namespace
}  // namespace perigee
