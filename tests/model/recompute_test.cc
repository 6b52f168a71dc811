// What a block computes again in its backward is what it had: the same bits, in less memory.
#include <gmock/gmock.h>

#include <array>

#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

struct Recomputed {
    double loss = 0;
    std::vector<float> grads;
    int64_t bytes = 0;
};

Recomputed train(ModelOptions const& options, std::vector<AttentionKind> const& kinds, std::string const& recompute) {
    TinyModel<float> model(options, tiny_moba(), 5,
                           {.recompute = parse_recompute(recompute, options.num_hidden_layers)});
    Batch const batch = random_batch({9, 1, 23, 16}, options.vocab_size, 6);
    double loss = model.gradient(batch, kinds);
    loss += model.gradient(batch, kinds, 0.5);
    return {loss, model.grads, model.arena.peak_bytes()};
}

/// All lists of three levels.
std::vector<std::string> mixed_lists() {
    std::vector<std::string> lists;
    std::array const levels = {"none", "elementwise", "mlp", "attention", "block"};
    for (auto const* first : levels)
        for (auto const* second : levels)
            for (auto const* third : levels) lists.push_back(fmt::format("{}, {}, {}", first, second, third));
    return lists;
}

TEST(Recompute, GivesTheSameBitsInLessMemory) {
    for (bool variant : {false, true}) {
        ModelOptions options = tiny_options();
        options.hidden_size = 64;  // large enough that memory is more than alignment
        options.intermediate_size = 96;
        options.qkv_bias = options.qk_norm = options.tie_word_embeddings = variant;
        options.key_conv = variant ? 5 : 0;
        for (auto const& kinds : {all(AttentionKind::full), all(AttentionKind::moba), mixed()}) {
            Recomputed const kept = train(options, kinds, "none");
            EXPECT_GT(relative_error(kept.grads, std::vector<float>(kept.grads.size())), 0);
            int64_t bytes = kept.bytes;
            for (char const* const recompute : {"elementwise", "mlp", "attention", "block"}) {
                Recomputed const again = train(options, kinds, recompute);
                EXPECT_EQ(again.loss, kept.loss);
                EXPECT_EQ(again.grads, kept.grads) << recompute;
                EXPECT_LT(again.bytes, bytes) << recompute;
                bytes = again.bytes;
            }
        }
    }
}

TEST(Recompute, GivesTheSameBitsByLayer) {
    for (bool variant : {false, true}) {
        ModelOptions options = tiny_options();
        options.qkv_bias = options.qk_norm = options.tie_word_embeddings = variant;
        options.key_conv = variant ? 5 : 0;
        for (auto const& kinds : {all(AttentionKind::full), all(AttentionKind::moba), mixed()}) {
            Recomputed const kept = train(options, kinds, "none");
            for (std::string const& list : mixed_lists()) {
                Recomputed const again = train(options, kinds, list);
                EXPECT_EQ(again.loss, kept.loss) << list;
                EXPECT_EQ(again.grads, kept.grads) << list;
            }
        }
    }
}

TEST(Recompute, OfLevelAttentionAttendsOnce) {
    auto const attended = [](char const* recompute) {
        TinyModel<float> model(tiny_options(), tiny_moba(), 5, {.recompute = parse_recompute(recompute, 3)});
        model.gradient(random_batch({9, 1, 23, 16}, 11, 6), mixed());
        return std::array{model.calls("attention_forward"), model.calls("select_blocks"), model.calls("qkv_forward")};
    };
    EXPECT_EQ(attended("none"), (std::array<int64_t, 3>{3, 2, 3}));
    EXPECT_EQ(attended("attention"), (std::array<int64_t, 3>{3, 2, 6}));
    EXPECT_EQ(attended("block"), (std::array<int64_t, 3>{6, 4, 6}));
    EXPECT_EQ(attended("block*2, attention"), (std::array<int64_t, 3>{5, 4, 6}));
}

TEST(Recompute, LeavesTheChoicesOfEveryLayer) {
    Batch const batch = random_batch({40}, 11, 6);
    auto const choices = [&](char const* recompute) {
        TinyModel<float> model(tiny_options(), tiny_moba(), 5, {.recompute = parse_recompute(recompute, 3)});
        BlockChoices const found = model.choices(batch, all(AttentionKind::moba));
        std::vector<std::vector<int64_t>> heads(3);
        for (int64_t layer = 0; layer < 3; ++layer)
            for (int64_t from = 0; from < batch.tokens(); ++from)
                for (int64_t place = 0; place <= from; ++place)
                    heads[static_cast<size_t>(layer)].push_back(found.attended(layer, from, {{place}}).chosen);
        return heads;
    };
    auto const expected = choices("none");
    EXPECT_NE(expected[0], expected[2]);
    EXPECT_EQ(choices("block"), expected);
}

TEST(ParseRecompute, TakesOneLevelOrAListByLayer) {
    using enum Recompute;
    auto const parsed = [](char const* text) { return parse_recompute(text, 4); };
    EXPECT_EQ(parsed("none"), std::vector(4, none));
    EXPECT_EQ(parsed("attention"), std::vector(4, attention));
    EXPECT_EQ(parsed("block*3, attention"), (std::vector{block, block, block, attention}));
    EXPECT_EQ(parsed("mlp,none*3"), (std::vector{mlp, none, none, none}));
    EXPECT_EQ(parsed("mlp*2 , elementwise"), (std::vector{mlp, mlp, elementwise, elementwise}));
    EXPECT_EQ(parsed("none, elementwise, mlp, block*1"), (std::vector{none, elementwise, mlp, block}));
    EXPECT_TRUE(parsed("auto").empty());
    for (char const* const text : {"mlp", "block*3, attention*1", "none*1, mlp*2, none*1"})
        EXPECT_EQ(to_string(parsed(text)), text);
}

TEST(ParseRecompute, RefusesInWords) {
    std::vector<std::pair<char const*, char const*>> const cases = {
        {"", "found \"\""},
        {"blok", "found \"blok\""},
        {"block, auto", "found \"auto\""},
        {"block*", "number of layers after `*`, found \"\""},
        {"block*0", "found \"0\""},
        {"block*-1", "found \"-1\""},
        {"block*1.5", "found \"1.5\""},
        {"block*99999999999999999999", "number of layers"},
        {"block*9223372036854775807, mlp", "more layers than model.num_hidden_layers = 4"},
        {"block*5", "more layers than model.num_hidden_layers = 4"},
        {"block*4, mlp", "more layers than model.num_hidden_layers = 4"},
        {"block*2, mlp*1", "names 3 layers, but model.num_hidden_layers = 4"},
        {"block*2,", "found \"\""}};
    for (auto const& [text, expected] : cases) {
        try {
            parse_recompute(text, 4);
            ADD_FAILURE() << text;
        } catch (Error const& e) {
            EXPECT_EQ(e.category(), Category::config);
            EXPECT_THAT(e.what(), ::testing::HasSubstr(expected)) << text;
            EXPECT_THAT(e.what(), ::testing::HasSubstr("train.recompute")) << text;
        }
    }
}

}  // namespace

}  // namespace perigee::testing
