// The list of parameters, their initial values, and the count of floating-point operations.
#include <gmock/gmock.h>

#include <set>

#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

std::vector<float> initial(ParamLayout const& layout, uint64_t seed) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    std::vector<float> weights = poisoned<float>(layout.size());
    initialise(*ops, layout, {{layout.whole(), TensorView(weights.data(), {layout.size()})}}, seed);
    return weights;
}

TEST(LlamaParams, BearHuggingFaceNames) {
    ModelOptions options = tiny_options();
    options.num_hidden_layers = 1;
    options.qkv_bias = options.qk_norm = true;
    std::vector<std::string> names;
    for (ParamSpec const& spec : llama_params(options)) names.push_back(spec.name);
    EXPECT_THAT(names, ::testing::ElementsAre(
                           "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                           "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                           "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.q_proj.bias",
                           "model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.v_proj.bias",
                           "model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.k_norm.weight",
                           "model.layers.0.self_attn.o_proj.weight", "model.layers.0.post_attention_layernorm.weight",
                           "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                           "model.layers.0.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"));
    options.tie_word_embeddings = true;
    EXPECT_EQ(llama_params(options).back().name, "model.norm.weight");
}

TEST(LlamaParams, CountThoseOfAPublishedModel) {
    ModelOptions llama8b;  // Llama 3.1 8B
    llama8b.vocab_size = 128256;
    llama8b.hidden_size = 4096;
    llama8b.intermediate_size = 14336;
    llama8b.num_hidden_layers = 32;
    llama8b.num_attention_heads = 32;
    llama8b.num_key_value_heads = 8;
    EXPECT_EQ(ParamLayout(llama_params(llama8b), 8, 3).global_size(), 8030261248);
    EXPECT_NEAR(static_cast<double>(ParamLayout(llama_params(llama8b), 8, 3).size()), 8030261248.0 / 8, 1e6);
}

TEST(LlamaParams, InitialValuesDoNotDependOnTheLayout) {
    ModelOptions options = tiny_options();
    options.vocab_size = 12;
    options.qkv_bias = true;
    ParamLayout const whole(llama_params(options), 1, 0);
    std::vector<float> const expected = initial(whole, 42);
    for (int rank = 0; rank < 2; ++rank) {
        ParamLayout const part(llama_params(options), 2, rank);
        std::vector<float> const values = initial(part, 42);
        for (ParamLayout::Entry const& entry : part.entries())
            for (Shard::Run const& run : entry.shard.runs())
                for (int64_t i = 0; i < run.count; ++i)
                    ASSERT_EQ(values[static_cast<size_t>(entry.offset + run.local + i)],
                              expected[static_cast<size_t>(whole.entry(entry.spec.name).offset + run.global + i)])
                        << entry.spec.name;
    }
}

TEST(LlamaParams, InitialValuesFollowTheirSpecification) {
    ModelOptions options = tiny_options();
    options.hidden_size = 64;
    options.intermediate_size = 96;
    options.qkv_bias = options.qk_norm = true;
    ParamLayout const layout(llama_params(options), 1, 0);
    std::vector<float> const values = initial(layout, 43);
    std::set<float> starts;
    for (ParamLayout::Entry const& entry : layout.entries()) {
        double mean = 0, squares = 0;
        auto const count = static_cast<double>(entry.local.size());
        for (int64_t i = 0; i < entry.local.size(); ++i) {
            double const v = values[static_cast<size_t>(entry.offset + i)];
            mean += v / count;
            squares += v * v / count;
        }
        std::string const& name = entry.spec.name;
        if (name.ends_with("norm.weight")) {
            EXPECT_NEAR(mean, 1, 1e-12) << name;
            EXPECT_NEAR(squares, 1, 1e-12) << name;
        } else if (name.ends_with("bias")) {
            EXPECT_EQ(squares, 0) << name;
        } else {
            bool const output = name.find("o_proj") != name.npos || name.find("down_proj") != name.npos;
            double const stddev = output ? 0.02 / std::sqrt(6.0) : 0.02;
            EXPECT_NEAR(mean, 0, 5 * stddev / std::sqrt(count)) << name;
            EXPECT_NEAR(std::sqrt(squares) / stddev, 1, 4 / std::sqrt(count)) << name;
            EXPECT_TRUE(starts.insert(values[static_cast<size_t>(entry.offset)]).second) << name;
        }
        EXPECT_EQ(entry.spec.decay, entry.local.rank() == 2) << name;
    }
    EXPECT_NE(initial(layout, 44), values);
    EXPECT_EQ(initial(layout, 43), values);
}

TEST(ForwardFlops, CountPairsOneByOne) {
    ModelOptions const options = tiny_options();
    MobaOptions const moba{.block_size = 4, .top_k = 3};
    std::vector<int32_t> const borders{0, 23, 24, 24, 40};
    double full = 0, sparse = 0, scored = 0;
    for (int length : {23, 1, 0, 16}) {
        for (int t = 0; t < length; ++t) {
            int const block = t / 4;
            full += t + 1;
            sparse += t - 4 * block + 1 + 4 * std::min(block, 2);
            scored += block;
        }
    }
    ForwardFlops const all_full = forward_flops(options, selections(all(AttentionKind::full), moba), borders);
    EXPECT_EQ(all_full.attention, 3 * 4.0 * 6 * 4 * full);
    EXPECT_EQ(all_full.gate, 0);
    // Per layer q, k, v, o: 12 * (24 + 12 + 12) + 24 * 12; gate, up, down: 3 * 12 * 10; classifier: 11 * 12.
    EXPECT_EQ(all_full.linear, 2.0 * 40 * (3 * (576 + 288 + 360) + 132));
    ForwardFlops const two_moba = forward_flops(options, selections(mixed(), moba), borders);
    EXPECT_EQ(two_moba.attention, 4.0 * 6 * 4 * (2 * sparse + full));
    EXPECT_EQ(two_moba.gate, 2 * 2.0 * 6 * 4 * scored);
    EXPECT_EQ(two_moba.training(), 3 * (two_moba.linear + two_moba.attention) + two_moba.gate);
}

TEST(ForwardFlops, TokensWithoutLossNeedNoClassifier) {
    ModelOptions const options = tiny_options();  // 11 tokens, 12 channels
    std::vector<int32_t> const borders{0, 23, 40};
    auto const training = [&](int64_t tokens, Untrained const& untrained) {
        ForwardFlops flops = forward_flops(options, selections(all(AttentionKind::full), {}), borders, untrained);
        leave_out_classifier(flops, options, tokens, untrained);
        return flops.training();
    };
    EXPECT_EQ(training(0, {}) - training(30, {}), 3 * 2.0 * 30 * 132);
    Untrained const frozen{.elements = 132, .classifier = true};
    EXPECT_EQ(training(0, frozen) - training(30, frozen), 2 * 2.0 * 30 * 132) << "its gradient counts for no token";
    std::vector<ParamSpec> params = llama_params(options);
    EXPECT_FALSE(untrained(params, options).classifier);
    freeze(params, std::vector<std::string>{"model.layers.0.*"});
    EXPECT_FALSE(untrained(params, options).classifier);
    freeze(params, std::vector<std::string>{"lm_head.weight"});
    EXPECT_TRUE(untrained(params, options).classifier);
}

TEST(ForwardFlops, RulesOfPositionExecuteWhatTheGatesLayersDoWithoutTheGate) {
    ModelOptions const options = tiny_options();
    MobaOptions const moba{.block_size = 4, .top_k = 3};
    std::vector<int32_t> const borders{0, 23, 24, 24, 40};
    auto const flops = [&](Selection const& rule) {
        return forward_flops(options, std::vector<Selection>{rule, FullAttention{}, rule}, borders);
    };
    ForwardFlops const gate = flops(moba);
    ASSERT_GT(gate.gate, 0);
    for (Selection const& rule : {Selection(NearestBlocks{.block_size = 4, .top_k = 3}),
                                  Selection(SinkNearestBlocks{.block_size = 4, .top_k = 3}),
                                  Selection(RandomBlocks{.block_size = 4, .top_k = 3, .seed = 5, .layer = 1})}) {
        ForwardFlops const found = flops(rule);
        EXPECT_EQ(found.attention, gate.attention);
        EXPECT_EQ(found.linear, gate.linear);
        EXPECT_EQ(found.sparse_pairs, gate.sparse_pairs);
        EXPECT_EQ(found.causal_pairs, gate.causal_pairs);
        EXPECT_EQ(found.gate, 0);
        EXPECT_EQ(found.training(), gate.training() - gate.gate);
    }
}

}  // namespace

}  // namespace perigee::testing
