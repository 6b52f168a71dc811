#include "model/options.h"

#include <gmock/gmock.h>

namespace perigee {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kFull = AttentionKind::full;
constexpr auto kMoba = AttentionKind::moba;

TEST(ModelOptions, DefaultsAreSound) {
    EXPECT_THAT(problems(ModelOptions{}), IsEmpty());
    EXPECT_THAT(problems(AttentionOptions{}, ModelOptions{}), IsEmpty());
}

TEST(ModelOptions, ZeroTakesTheUsualValue) {
    ModelOptions const options{.hidden_size = 512, .num_attention_heads = 8};
    EXPECT_EQ(options.kv_heads(), 8);
    EXPECT_EQ(options.head_size(), 64);
}

TEST(ModelOptions, ContradictionsNameBothNumbers) {
    EXPECT_THAT(problems(ModelOptions{.hidden_size = 100, .num_attention_heads = 3, .num_key_value_heads = 3}),
                ElementsAre(AllOf(HasSubstr("model.hidden_size = 100"), HasSubstr("model.num_attention_heads = 3")),
                            HasSubstr("model.head_dim = 33")));
    EXPECT_THAT(problems(ModelOptions{.num_attention_heads = 4, .num_key_value_heads = 3}),
                ElementsAre(AllOf(HasSubstr("model.num_attention_heads = 4"), HasSubstr("num_key_value_heads = 3"))));
    EXPECT_THAT(problems(ModelOptions{.head_dim = 7}), ElementsAre(HasSubstr("7 is odd")));
    EXPECT_THAT(problems(ModelOptions{.rope_scaling = {.factor = 2}}), ElementsAre(HasSubstr("rope_type")));
    EXPECT_THAT(problems(ModelOptions{.rope_scaling = {.type = RopeType::yarn, .factor = 2, .beta_fast = 1}}),
                ElementsAre(HasSubstr("beta_fast")));
    EXPECT_THAT(problems(ModelOptions{.rope_scaling = {.type = RopeType::llama3, .high_freq_factor = 1}}),
                ElementsAre(HasSubstr("high_freq_factor")));
}

TEST(AttentionOptions, ContradictionsAreFound) {
    ModelOptions const model{.num_hidden_layers = 4};
    AttentionOptions options;
    options.full_layers.last = 5;
    options.full_layers.layers = {4, 1};
    options.schedule = {{.step = 10}, {.step = 10}};
    EXPECT_THAT(problems(options, model),
                ElementsAre(HasSubstr("last = 5"), HasSubstr("layer 4"), HasSubstr("step 10")));
}

/// As layer_selections, by kind.
std::vector<AttentionKind> kinds_of(AttentionOptions const& options, int64_t layers, int64_t step) {
    std::vector<AttentionKind> kinds;
    for (Selection const& selection : layer_selections(options, layers, step, 0))
        kinds.push_back(is_full(selection) ? kFull : kMoba);
    return kinds;
}

TEST(LayerKinds, FullLayersStayFull) {
    AttentionOptions options;
    options.kind = kMoba;
    EXPECT_THAT(kinds_of(options, 2, 0), ElementsAre(kMoba, kMoba));
    options.full_layers.last = 2;
    options.full_layers.layers = {0};
    EXPECT_THAT(kinds_of(options, 5, 0), ElementsAre(kFull, kMoba, kMoba, kFull, kFull));
    options.kind = kFull;
    EXPECT_THAT(kinds_of(options, 2, 0), ElementsAre(kFull, kFull));
}

TEST(LayerKinds, TheLatestSwitchDecides) {
    AttentionOptions options;
    options.kind = kMoba;
    options.full_layers.last = 1;
    options.schedule = {{.step = 10, .kind = kFull}, {.step = 20, .kind = kMoba}};
    for (auto const& [step, kind] :
         {std::pair(0, kMoba), {9, kMoba}, {10, kFull}, {19, kFull}, {20, kMoba}, {99, kMoba}})
        EXPECT_THAT(kinds_of(options, 2, step), ElementsAre(kind, kFull)) << step;
}

TEST(LayerSelections, AreTheNamedRuleWithTheBudgetOfTheGate) {
    AttentionOptions options;
    options.moba = {.block_size = 32, .top_k = 5, .force_previous = true};
    EXPECT_TRUE(std::get<MobaOptions>(layer_selections(options, 1, 0, 7)[0]).force_previous);
    for (char const* name : {"nearest", "sink_nearest", "random"}) {
        options.selection = name;
        for (Selection const& selection : layer_selections(options, 3, 0, 7)) {
            EXPECT_STREQ(std::visit([](auto const& rule) { return rule.kName; }, selection), name);
            EXPECT_EQ(budget_of(selection), (BlockBudget{32, 5}));
        }
    }
    options.selection = RandomBlocks::kName;
    auto const second = std::get<RandomBlocks>(layer_selections(options, 3, 0, 7)[1]);
    EXPECT_EQ(second.seed, 7);
    EXPECT_EQ(second.layer, 1);
}

TEST(AttentionOptions, SinkNearestNeedsASlotForTheSink) {
    AttentionOptions options{.selection = SinkNearestBlocks::kName};
    options.moba.top_k = 2;
    EXPECT_THAT(problems(options, ModelOptions{}), IsEmpty());
    options.moba.top_k = 1;
    EXPECT_THAT(problems(options, ModelOptions{}),
                ElementsAre(AllOf(HasSubstr("attention.top_k = 1"), HasSubstr("sink_nearest needs at least 2"))));
    options.selection = NearestBlocks::kName;
    EXPECT_THAT(problems(options, ModelOptions{}), IsEmpty());
}

std::vector<std::string> keys_of(Schema const& schema) {
    std::vector<std::string> keys;
    for (Field const& field : schema.fields()) {
        EXPECT_FALSE(field.help.empty()) << field.key;
        keys.push_back(field.key);
    }
    return keys;
}

TEST(Schema, ModelKeysAreHuggingFaces) {
    ModelOptions options;
    Schema schema;
    describe(schema, options);
    EXPECT_THAT(
        keys_of(schema),
        ElementsAre("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                    "num_key_value_heads", "head_dim", "max_position_embeddings", "rope_theta", "rope_scaling",
                    "rms_norm_eps", "initializer_range", "tie_word_embeddings", "qkv_bias", "qk_norm", "init_from"));
}

TEST(Schema, AttentionDescribesEveryKey) {
    AttentionOptions options;
    Schema schema;
    describe(schema, options);
    EXPECT_THAT(keys_of(schema), ElementsAre("kind", "selection", "block_size", "top_k", "force_previous",
                                             "force_first", "shared_selection", "full_layers", "schedule"));
    auto const& full_layers = std::get<Field::Section>(schema.fields()[7].target);
    EXPECT_EQ(full_layers.shorthand, &options.full_layers.layers);
    EXPECT_THAT(keys_of(*full_layers.schema), ElementsAre("last", "layers"));
}

}  // namespace

}  // namespace perigee
