// Where gradients go: against a slow walk over pairs of tokens, and against the gradient itself.
#include "model/reach.h"

#include <gmock/gmock.h>

#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

using ::testing::ElementsAre;
using Reached = std::vector<std::vector<uint8_t>>;

/// Up to two random past blocks for every token, for any of three heads.
std::vector<int32_t> random_choices(std::vector<int32_t> const& borders, int64_t block, int64_t blocks, uint64_t seed) {
    Philox const random(seed, Purpose::mock_data, 7);
    std::vector<int32_t> heads_TN(static_cast<size_t>(borders.back() * blocks));
    uint64_t index = 0;
    for (size_t i = 1; i < borders.size(); ++i)
        for (int64_t t = borders[i - 1]; t < borders[i]; ++t)
            if (int64_t const past = (t - borders[i - 1]) / block; past > 0)
                for (int n = 0; n < 2; ++n) {
                    auto const choice = static_cast<int64_t>(random.below(index++, static_cast<uint64_t>(past)));
                    heads_TN[static_cast<size_t>(t * blocks + choice)] = 1 + static_cast<int32_t>(n);
                }
    return heads_TN;
}

TEST(Reach, FollowsEveryPairOfTokensThatAttention) {
    std::vector<int32_t> const borders{0, 23, 23, 24, 40};
    BlockChoices choices(borders, 4, 3);
    ASSERT_EQ(choices.blocks(), 6);
    std::vector<std::vector<int32_t>> layers;
    for (uint64_t layer = 0; layer < 4; ++layer) {
        layers.push_back(layer == 1 ? std::vector<int32_t>() : random_choices(borders, 4, 6, layer));
        if (layer == 1)
            choices.add_full_layer();
        else
            choices.add_sparse_layer(layers.back());
    }
    Philox const random(5, Purpose::mock_data, 8);
    size_t most = 0, least = 40;
    for (uint64_t round = 0; round < 20; ++round) {
        std::vector<float> weights(40);
        for (uint64_t n = 0; n < 3; ++n) weights[random.below(round * 3 + n, 40)] = 0.25f;
        std::vector<uint8_t> expected(weights.begin(), weights.end());
        for (size_t t = 0; t < 40; ++t) expected[t] = weights[t] > 0;
        Reached const reached = choices.reached(weights);
        ASSERT_EQ(reached.size(), 4u);
        for (size_t layer = 4; layer-- > 0;) {
            std::vector<uint8_t> below = expected;
            for (size_t i = 1; i < borders.size(); ++i)
                for (int32_t from = borders[i - 1]; from < borders[i]; ++from)
                    for (int32_t to = borders[i - 1]; to <= from; ++to) {
                        int32_t const own = (from - borders[i - 1]) / 4, block = (to - borders[i - 1]) / 4;
                        bool const attends = layers[layer].empty() || own == block ||
                                             layers[layer][static_cast<size_t>(from * 6 + block)] > 0;
                        if (attends && expected[static_cast<size_t>(from)]) below[static_cast<size_t>(to)] = 1;
                    }
            expected = below;
            ASSERT_EQ(reached[layer], expected) << "round " << round << " layer " << layer;
        }
        auto const count = static_cast<size_t>(std::ranges::count(expected, 1));
        most = std::max(most, count), least = std::min(least, count);
    }
    EXPECT_LT(least, 20u);
    EXPECT_GT(most, 24u);
}

/// The tokens whose embedding a backward pass moves, from tokens that all differ.
std::vector<uint8_t> moved(TinyModel<double>& model, ModelOptions const& options, Batch const& batch,
                           std::vector<AttentionKind> const& kinds) {
    std::ranges::fill(model.grads, 0.0);
    model.gradient(batch, kinds);
    auto const offset = static_cast<size_t>(model.layout.entry("model.embed_tokens.weight").offset);
    auto const width = static_cast<size_t>(options.hidden_size);
    std::vector<uint8_t> result;
    for (int32_t const id : batch.ids_T) {
        auto const row = model.grads.begin() + static_cast<int64_t>(offset + static_cast<size_t>(id) * width);
        result.push_back(std::any_of(row, row + options.hidden_size, [](double g) { return g != 0; }));
    }
    return result;
}

TEST(Reach, IsWhereTheGradientIs) {
    ModelOptions options = tiny_options();
    options.vocab_size = 80;
    MobaOptions const moba{.block_size = 4, .top_k = 2};
    TinyModel<double> model(options, moba, 31);
    Batch batch = random_batch({37, 1, 26, 16}, options.vocab_size, 32);
    for (int32_t i = 0; i < 80; ++i) batch.ids_T[static_cast<size_t>(i)] = (7 * i + 3) % 80;
    for (size_t const loss : {0u, 22u, 36u, 50u, 79u}) {
        std::ranges::fill(batch.weights_T, 0.0f);
        batch.weights_T[loss] = 0.5f;
        for (auto const& kinds : {all(AttentionKind::moba), mixed(), all(AttentionKind::full)}) {
            Reached const reached = model.choices(batch, kinds).reached(batch.weights_T);
            EXPECT_EQ(reached[0], moved(model, options, batch, kinds)) << "loss on token " << loss;
            if (loss == 36 && kinds == all(AttentionKind::moba)) {
                EXPECT_LT(std::ranges::count(reached[0], 1), 37) << "not all of the document, or the test is idle";
                EXPECT_LT(std::ranges::count(reached[2], 1), std::ranges::count(reached[0], 1));
            }
        }
    }
}

TEST(StreamGradient, IsThatOfTheEmbeddingBelowTheFirstLayerAndZeroWhereNothingIsReached) {
    ModelOptions options = tiny_options();
    options.vocab_size = 80;
    TinyModel<double> model(options, {.block_size = 4, .top_k = 2}, 31);
    Batch batch = random_batch({37, 1, 26, 16}, options.vocab_size, 32);
    for (int32_t i = 0; i < 80; ++i) batch.ids_T[static_cast<size_t>(i)] = (7 * i + 3) % 80;  // all differ
    std::ranges::fill(batch.weights_T, 0.0f);
    batch.weights_T[36] = batch.weights_T[50] = 0.5f;
    auto const embedding = static_cast<size_t>(model.layout.entry("model.embed_tokens.weight").offset);
    for (auto const& kinds : {all(AttentionKind::moba), mixed(), all(AttentionKind::full)}) {
        Reached const reached = model.choices(batch, kinds).reached(batch.weights_T);
        std::vector<double> scales_LT(3 * 80);
        model.gradient(batch, kinds, 1, /*fresh=*/true, TensorView(scales_LT.data(), {3, 80}));
        for (size_t layer = 0; layer < 3; ++layer)
            for (size_t t = 0; t < 80; ++t)
                EXPECT_EQ(std::isfinite(scales_LT[layer * 80 + t]), reached[layer][t] != 0) << layer << " " << t;
        for (size_t t = 0; t < 80; ++t) {
            double squares = 0;
            for (size_t i = 0; i < 12; ++i) {
                double const g = model.grads[embedding + static_cast<size_t>(batch.ids_T[t]) * 12 + i];
                squares += g * g;
            }
            double const root_mean = std::isinf(scales_LT[t]) ? 0 : 1 / scales_LT[t];
            EXPECT_NEAR(root_mean, std::sqrt(squares / 12), 1e-12) << t;
        }
    }
}

TEST(Reach, CountsTheHeadsThatAttendNeededBlocks) {
    std::vector<int32_t> const borders{0, 3, 15};  // blocks of the second document: 3-6, 7-10, 11-14
    BlockChoices choices(borders, 4, 5);
    std::vector<int32_t> heads_TN(15 * 3);
    heads_TN[14 * 3 + 0] = 2;
    heads_TN[14 * 3 + 1] = 3;
    choices.add_sparse_layer(heads_TN);
    choices.add_full_layer();
    auto const share = [&](int64_t layer, int64_t from, std::vector<int64_t> const& places) {
        auto const [chosen, needed] = choices.attended(layer, from, places);
        return std::vector<int64_t>{chosen, needed};
    };
    EXPECT_THAT(share(0, 14, {3}), ElementsAre(2, 5));
    EXPECT_THAT(share(0, 14, {6, 4, 7}), ElementsAre(5, 10));
    EXPECT_THAT(share(0, 14, {13}), ElementsAre(5, 5)) << "its own block is always attended";
    EXPECT_THAT(share(0, 13, {3}), ElementsAre(0, 5));
    EXPECT_THAT(share(1, 13, {3, 8}), ElementsAre(10, 10)) << "a full layer attends all";
    EXPECT_THROW(share(0, 14, {2}), Error) << "in another document";
    EXPECT_THROW(share(0, 13, {14}), Error) << "in the future";
}

TEST(Reach, MapHasTheSharesOfEachPairOfBlocks) {
    std::vector<int32_t> const borders{0, 3, 15};  // blocks of the second document: 3-6, 7-10, 11-14
    BlockChoices choices(borders, 4, 5);
    std::vector<int32_t> heads_TN(15 * 3);
    for (size_t t = 11; t < 15; ++t) heads_TN[t * 3 + 1] = 3;
    heads_TN[14 * 3 + 0] = 2;
    heads_TN[8 * 3 + 0] = 5;
    choices.add_sparse_layer(heads_TN);
    auto const map = choices.map(0, 3);
    ASSERT_EQ(map.size(), 3u);
    EXPECT_THAT(map[0], ElementsAre(1, 0, 0));
    EXPECT_THAT(map[1], ElementsAre(5.0 / 20, 1, 0));
    EXPECT_THAT(map[2], ElementsAre(2.0 / 20, 12.0 / 20, 1));
    EXPECT_EQ(choices.blocks_per_cell(3), 1);
    ASSERT_EQ(choices.blocks_per_cell(2), 2);
    auto const coarse = choices.map(0, 2);
    ASSERT_EQ(coarse.size(), 2u);
    // 3 tokens of one document and 8 of the other have their own block, 4 of which have one past block too.
    EXPECT_THAT(coarse[0], ElementsAre(60.0 / 75, 0));
    EXPECT_THAT(coarse[1], ElementsAre(14.0 / 40, 1));
}

TEST(Reach, TheModelTellsWhatItsHeadsChose) {
    ModelOptions const options = tiny_options();
    TinyModel<double> model(options, {.block_size = 4, .top_k = 3}, 33);
    Batch const batch = random_batch({30, 9}, options.vocab_size, 34);
    BlockChoices const choices = model.choices(batch, mixed());
    EXPECT_EQ(choices.layers(), 3);
    EXPECT_FALSE(choices.is_full(1));
    EXPECT_TRUE(choices.is_full(2));
    std::vector<int64_t> const past_blocks{0, 4, 8, 12, 16, 20};
    for (int64_t layer : {0, 1}) {
        EXPECT_EQ(choices.attended(layer, 27, past_blocks).chosen, 4 * 2) << "four heads choose two of six blocks";
        EXPECT_EQ(choices.attended(layer, 9, std::vector<int64_t>{0, 4}).chosen, 4 * 2) << "both, where there are two";
    }
}

TEST(Reach, CountsTheBlocksThatAGroupSelectsTogether) {
    ModelOptions const options = tiny_options();
    Batch const batch = random_batch({30, 9}, options.vocab_size, 34);
    int64_t const heads = options.num_attention_heads, groups = options.kv_heads();
    ASSERT_EQ(heads, 2 * groups);
    int64_t const of_a_head = (4 + 22 * 2) + (4 + 2);  // one block where there is one, then two
    for (MobaSelection const per : {MobaSelection::per_group, MobaSelection::per_head}) {
        TinyModel<double> model(options, {.block_size = 4, .top_k = 3, .selection = per}, 33);
        BlockChoices const choices = model.choices(batch, mixed());
        GroupBlocks const found = choices.group_blocks(0), full = choices.group_blocks(2);
        EXPECT_EQ(found.of_heads, heads * of_a_head);
        if (per == MobaSelection::per_group) {
            EXPECT_EQ(found.of_groups, groups * of_a_head);
        } else {
            EXPECT_GT(found.of_groups, groups * of_a_head);
            EXPECT_LT(found.of_groups, heads * of_a_head);
        }
        EXPECT_EQ(full.of_heads + full.of_groups, 0);
    }
}

}  // namespace

}  // namespace perigee::testing
