// config.json: what each architecture's fields mean, in both spellings of the rope, and every refusal by name.
#include "hf/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hf/hf_folder.h"
#include "hf/schema_json.h"

namespace perigee {
namespace {

using namespace testing;
using nlohmann::json;

template <class Options>
std::string text_of(Options options) {
    Schema schema;
    describe(schema, options);
    return write_json(schema);
}

HfConfig parse(json const& config) { return parse_hf_config(config.dump(), "config.json"); }
ModelOptions model(json const& config) { return parse(config).model; }
std::string refusal(json const& config) {
    return error_of(Category::config, [&] { parse(config); });
}
json small(std::string const& type) { return json::parse(small_config(type, false)); }
json with(json config, std::string const& key, json const& value) {
    config[key] = value;
    return config;
}
json without(json config, std::string const& key) {
    config.erase(key);
    return config;
}

TEST(HfConfig, architectures_differ_in_bias_and_norms_of_queries_and_keys) {
    for (auto const& [type, bias, norm] : {std::tuple{"llama", false, false},
                                           {"mistral", false, false},
                                           {"qwen2", true, false},
                                           {"qwen3", false, true}}) {
        ModelOptions const o = model(small(type));
        EXPECT_EQ(o.qkv_bias, bias) << type;
        EXPECT_EQ(o.qk_norm, norm) << type;
        EXPECT_EQ(o.vocab_size, 24);
        EXPECT_EQ(o.hidden_size, 12);
        EXPECT_EQ(o.intermediate_size, 20);
        EXPECT_EQ(o.num_hidden_layers, 2);
        EXPECT_EQ(o.num_attention_heads, 4);
        EXPECT_EQ(o.kv_heads(), 2);
        EXPECT_EQ(o.head_size(), 6);
        EXPECT_EQ(o.max_position_embeddings, 64);
        EXPECT_EQ(o.rope_theta, 500);
        EXPECT_EQ(o.rms_norm_eps, 1e-6);
        EXPECT_FALSE(o.tie_word_embeddings);
        EXPECT_EQ(o.rope_scaling.type, RopeType::standard);
    }
    EXPECT_TRUE(model(with(small("llama"), "tie_word_embeddings", true)).tie_word_embeddings);
}

TEST(HfConfig, what_is_absent_means_what_it_means_to_transformers) {
    json config = small("llama");
    for (char const* key : {"head_dim", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta"})
        config.erase(key);
    auto const of = [&](std::string const& type) {
        json typed = with(config, "model_type", type);
        typed.erase("architectures");
        typed["num_attention_heads"] = 32;
        typed["hidden_size"] = 64;
        return model(typed);
    };
    for (auto const& [type, heads, size, positions] : {std::tuple{"llama", 32, 2, 2048},
                                                       {"mistral", 8, 2, 131072},
                                                       {"qwen2", 32, 2, 32768},
                                                       {"qwen3", 32, 128, 32768}}) {
        ModelOptions const o = of(type);
        EXPECT_EQ(o.kv_heads(), heads) << type;
        EXPECT_EQ(o.head_size(), size) << type;
        EXPECT_EQ(o.max_position_embeddings, positions) << type;
        EXPECT_EQ(o.rms_norm_eps, 1e-6) << type;
        EXPECT_EQ(o.rope_theta, 10000) << type;
    }
    config["num_key_value_heads"] = nullptr;
    EXPECT_EQ(of("mistral").kv_heads(), 32);
}

TEST(HfConfig, both_spellings_of_the_rope_are_read) {
    json const llama3{{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192}};
    json old_name = llama3;
    old_name["type"] = old_name["rope_type"];
    old_name.erase("rope_type");
    json joined = llama3;
    joined["rope_theta"] = 500.0;
    std::string const expected = text_of(model(with(small("llama"), "rope_scaling", llama3)));
    EXPECT_EQ(text_of(model(with(small("llama"), "rope_scaling", old_name))), expected);
    EXPECT_EQ(text_of(model(without(with(small("llama"), "rope_parameters", joined), "rope_theta"))), expected);
    RopeScaling const rope = model(with(small("llama"), "rope_scaling", llama3)).rope_scaling;
    EXPECT_EQ(rope.type, RopeType::llama3);
    EXPECT_EQ(rope.factor, 8);
    EXPECT_EQ(rope.low_freq_factor, 1);
    EXPECT_EQ(rope.high_freq_factor, 4);
    EXPECT_EQ(rope.original_max_position_embeddings, 8192);

    RopeScaling const linear =
        model(with(small("qwen2"), "rope_scaling", {{"type", "linear"}, {"factor", 2}})).rope_scaling;
    EXPECT_EQ(linear.type, RopeType::linear);
    EXPECT_EQ(linear.factor, 2);
    RopeScaling const yarn = model(with(small("qwen3"), "rope_parameters",
                                        {{"rope_type", "yarn"},
                                         {"factor", 4.0},
                                         {"beta_fast", 24.0},
                                         {"beta_slow", 2.0},
                                         {"attention_factor", 1.25},
                                         {"truncate", true},
                                         {"rope_theta", 1e6},
                                         {"original_max_position_embeddings", 32768}}))
                                 .rope_scaling;
    EXPECT_EQ(yarn.type, RopeType::yarn);
    EXPECT_EQ(yarn.beta_fast, 24);
    EXPECT_EQ(yarn.beta_slow, 2);
    EXPECT_EQ(yarn.attention_factor, 1.25);
    EXPECT_EQ(yarn.original_max_position_embeddings, 32768);
}

TEST(HfConfig, what_the_program_does_not_do_is_refused_by_name) {
    json const llama = small("llama"), mistral = small("mistral"), qwen2 = small("qwen2"), qwen3 = small("qwen3");
    std::vector<std::pair<json, std::string>> const cases = {
        {json::array(), "config.json: not a JSON object"},
        {without(llama, "model_type"),
         "config.json: model_type null is not supported; llama, mistral, qwen2 and qwen3 are"},
        {with(llama, "model_type", "mixtral"),
         "config.json: model_type \"mixtral\" is not supported; llama, mistral, qwen2 and qwen3 are"},
        {with(llama, "architectures", {"LlamaForSequenceClassification"}),
         "config.json: architectures [\"LlamaForSequenceClassification\"] is not supported; [\"LlamaForCausalLM\"] is"},
        {without(llama, "hidden_size"), "config.json: `hidden_size` is missing"},
        {with(llama, "hidden_size", nullptr), "config.json: `hidden_size` is missing"},
        {with(llama, "hidden_size", "12"), "config.json: `hidden_size` is \"12\"; an integer was expected"},
        {with(llama, "hidden_size", 12.0), "config.json: `hidden_size` is 12.0; an integer was expected"},
        {with(llama, "hidden_size", 0), "config.json: `hidden_size` is 0; a value from 1 to 1048576 was expected"},
        {with(llama, "vocab_size", int64_t{1} << 40),
         "config.json: `vocab_size` is 1099511627776; a value from 0 to 268435456 was expected"},
        {with(llama, "num_key_value_heads", 3),
         "config.json: model.num_attention_heads = 4 is not a multiple of model.num_key_value_heads = 3"},
        {with(llama, "tie_word_embeddings", 1), "config.json: `tie_word_embeddings` is 1; true or false was expected"},
        {with(llama, "hidden_act", "gelu"),
         "config.json: `hidden_act` is \"gelu\": other than \"silu\" is not supported"},
        {with(llama, "attention_bias", true),
         "config.json: `attention_bias` is true: other than false is not supported"},
        {with(qwen3, "attention_bias", true),
         "config.json: `attention_bias` is true: other than false is not supported"},
        {with(llama, "mlp_bias", true), "config.json: `mlp_bias` is true: other than false is not supported"},
        {with(llama, "pretraining_tp", 2), "config.json: `pretraining_tp` is 2: other than 1 is not supported"},
        {with(llama, "attention_dropout", 0.1),
         "config.json: `attention_dropout` is 0.1: other than 0.0 is not supported"},
        {with(llama, "partial_rotary_factor", 0.5),
         "config.json: `partial_rotary_factor` is 0.5: other than 1.0 is not supported"},
        {with(mistral, "sliding_window", 32),
         "config.json: `sliding_window` is 32: a window shorter than max_position_embeddings is not supported"},
        {without(mistral, "sliding_window"),
         "config.json: `sliding_window` is missing, which for mistral means 4096: not supported"},
        {with(qwen2, "use_sliding_window", true),
         "config.json: `use_sliding_window` is true: other than false is not supported"},
        {with(qwen3, "layer_types", {"full_attention", "sliding_attention"}),
         "config.json: `layer_types` is [\"full_attention\",\"sliding_attention\"]: other than `full_attention` for "
         "each "
         "layer is not supported"},
        {with(llama, "num_local_experts", 8),
         "config.json: `num_local_experts` is 8: a field this program does not know is not supported"},
        {with(llama, "quantization_config", {{"bits", 4}}),
         "config.json: `quantization_config` is {\"bits\":4}: a field this program does not know is not supported"},
        {with(llama, "perigee", {{"attention", {{"blocksize", 2}}}}),
         "config.json: `perigee`: `attention`: `blocksize` is not a known key"},
        {with(llama, "perigee", 1),
         "config.json: `perigee` is 1: other than an object with the key `attention` is not supported"},
        {with(llama, "perigee", {{"attention", {{"full_layers", {{"layers", {7}}}}}}}),
         "config.json: attention.full_layers names layer 7, but model.num_hidden_layers = 2"},
    };
    for (auto const& [config, message] : cases) EXPECT_EQ(refusal(config), message);
}

TEST(HfConfig, a_scaling_of_positions_that_the_program_does_not_do_is_refused_by_name) {
    json const llama = small("llama");
    auto const rope = [&](json const& fields) { return with(llama, "rope_scaling", fields); };
    json const linear{{"rope_type", "linear"}, {"factor", 2.0}};
    std::vector<std::pair<json, std::string>> const cases = {
        {rope({{"rope_type", "dynamic"}, {"factor", 2.0}}),
         "config.json: `rope_scaling`: `rope_type` is \"dynamic\"; another name was expected"},
        {rope({{"rope_type", "linear"}}), "config.json: `rope_scaling`: `factor` is missing"},
        {rope({{"rope_type", "linear"}, {"factor", 0.5}}),
         "config.json: `rope_scaling`: `factor` is 0.5; a value from 1 to inf was expected"},
        {rope({{"rope_type", "llama3"}, {"factor", 2.0}, {"low_freq_factor", 1.0}}),
         "config.json: `rope_scaling`: `high_freq_factor` is missing"},
        {rope({{"rope_type", "yarn"}, {"factor", 2.0}, {"mscale", 0.7}}),
         "config.json: `rope_scaling`: `mscale` is not a known key"},
        {rope({{"rope_type", "yarn"}, {"factor", 2.0}, {"truncate", false}}),
         "config.json: `rope_scaling`: `truncate` is false: other than true is not supported"},
        {rope({{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2.0}}),
         "config.json: `rope_scaling`: `type` is \"yarn\" but `rope_type` is \"linear\""},
        {rope("linear"), "config.json: `rope_scaling` is \"linear\": other than an object is not supported"},
        {with(rope(linear), "rope_parameters", linear),
         "config.json: `rope_scaling` is {\"factor\":2.0,\"rope_type\":\"linear\"}: stating it beside rope_parameters "
         "is "
         "not supported"},
    };
    for (auto const& [config, message] : cases) EXPECT_EQ(refusal(config), message);
}

TEST(HfConfig, what_has_no_effect_is_accepted) {
    json config = with(small("mistral"), "sliding_window", 64);
    config.update({{"use_cache", true},
                   {"some_new_field", false},
                   {"other", nullptr},
                   {"more", ""},
                   {"n", 0},
                   {"attention_bias", false},
                   {"pad_token_id", 7},
                   {"pruned_heads", json::object()}});
    EXPECT_EQ(text_of(model(config)), text_of(model(small("mistral"))));
    EXPECT_EQ(text_of(model(with(small("qwen2"), "sliding_window", 4096))), text_of(model(small("qwen2"))));
}

TEST(HfConfig, text_that_is_not_strict_json_is_refused) {
    auto const error = [](std::string const& text) {
        return error_of(Category::config, [&] { parse_hf_config(text, "config.json"); });
    };
    EXPECT_EQ(error(""), "config.json: not JSON at byte 1");
    EXPECT_EQ(error("{\"a\":1,\"a\":1}"), "config.json: the key \"a\" is there twice");
    std::string const long_key = "{\"" + std::string(79, 'a') + "\u00e9\":1,";  // cut inside a character, were it cut
    EXPECT_THAT(error(long_key + long_key.substr(1) + "\"b\":1}"), ::testing::HasSubstr("aaa... is there twice"));
    EXPECT_EQ(error(std::string(100, '[') + std::string(100, ']')), "config.json: nested deeper than 16 levels");
    EXPECT_EQ(error(std::string(2 << 20, ' ')), "config.json has 2097152 bytes; at most 1048576 are accepted");
    MemoryFileSystem files;
    files.make_directories("/model");
    EXPECT_EQ(error_of(Category::config, [&] { read_hf_config(files, "/model"); }),
              "/model/config.json is missing: not a Hugging Face folder");
}

TEST(HfConfig, an_export_keeps_what_it_came_with_and_adds_attention) {
    AttentionOptions attention{.kind = AttentionKind::moba};
    attention.moba = {.block_size = 96, .top_k = 5, .force_previous = true, .selection = MobaSelection::per_group};
    attention.full_layers.last = 1;
    for (char const* type : {"llama", "mistral", "qwen2", "qwen3"}) {
        std::string const before = small_config(type, true);
        std::string const after = write_hf_config(model(json::parse(before)), attention, ElementType::f16, before);
        json expected = json::parse(before), found = json::parse(after);
        found.erase("perigee");
        expected["torch_dtype"] = "float16";
        EXPECT_EQ(found, expected) << type;
        HfConfig const again = parse_hf_config(after, "config.json");
        ASSERT_TRUE(again.attention.has_value());
        EXPECT_EQ(text_of(*again.attention), text_of(attention));
        EXPECT_EQ(text_of(again.model), text_of(model(json::parse(before))));
    }
    EXPECT_FALSE(parse(small("llama")).attention.has_value());
}

TEST(HfConfig, an_export_without_origin_describes_every_model_that_an_architecture_has) {
    for (int kind = 0; kind < 12; ++kind) {
        ModelOptions o = model(small("llama"));
        o.qkv_bias = kind % 3 == 1;
        o.qk_norm = kind % 3 == 2;
        o.tie_word_embeddings = kind % 2 == 1;
        o.rope_scaling.type = static_cast<RopeType>(kind / 3);
        if (kind >= 3) o.rope_scaling.factor = 4;
        if (o.rope_scaling.type == RopeType::yarn) o.rope_scaling.attention_factor = 1.5;
        std::string const text = write_hf_config(o, {}, ElementType::bf16, "");
        if (o.rope_scaling.type == RopeType::llama3)  // transformers wants it said
            o.rope_scaling.original_max_position_embeddings = o.max_position_embeddings;
        EXPECT_EQ(text_of(parse_hf_config(text, "config.json").model), text_of(o)) << text;
        EXPECT_EQ(json::parse(text)["torch_dtype"], "bfloat16");
    }
    ModelOptions both = model(small("llama"));
    both.qkv_bias = both.qk_norm = true;
    EXPECT_EQ(
        error_of(Category::config, [&] { write_hf_config(both, {}, ElementType::f32, ""); }),
        "no architecture of Hugging Face has both model.qkv_bias and model.qk_norm: the model cannot be exported");
}

TEST(HfConfig, tokens_that_end_an_answer_join_those_that_end_a_text) {
    auto const ends = [](json const& eos, std::vector<int32_t> const& more) {
        json root{{"a", 1}};
        if (!eos.is_null()) root["eos_token_id"] = eos;
        return json::parse(with_ends(root.dump(), more, "config.json"))["eos_token_id"];
    };
    EXPECT_EQ(ends(0, {2}), json({0, 2}));
    EXPECT_EQ(ends(2, {2}), json(2));
    EXPECT_EQ(ends({3, 4}, {4, 5}), json({3, 4, 5}));
    EXPECT_EQ(ends(nullptr, {2}), json(2));
    EXPECT_EQ(ends(nullptr, {2, 7}), json({2, 7}));
    EXPECT_EQ(with_ends("{ \"eos_token_id\": [2]}", {2}, "config.json"), "{ \"eos_token_id\": [2]}");
    EXPECT_EQ(with_ends("no JSON", {}, "config.json"), "no JSON");
    EXPECT_EQ(error_of(Category::config, [] { with_ends("[]", {2}, "generation_config.json"); }),
              "generation_config.json: not a JSON object");
}

TEST(HfConfig, a_convolution_of_keys_is_refused_by_name) {
    ModelOptions o = model(small("llama"));
    o.key_conv = 3;
    std::string const refusal =
        "no architecture of Hugging Face has attention.key_conv (3): the model cannot be exported";
    EXPECT_EQ(error_of(Category::config, [&] { write_hf_config(o, {}, ElementType::f32, ""); }), refusal);
    EXPECT_EQ(error_of(Category::config, [&] { write_hf_config(o, {}, ElementType::f32, small("llama").dump()); }),
              refusal);
    EXPECT_EQ(export_problem(o, {}), refusal);
}

TEST(HfConfig, a_changed_model_changes_the_fields_of_its_origin) {
    ModelOptions o = model(small("mistral"));
    o.max_position_embeddings = 256;
    o.rope_scaling = {.type = RopeType::linear, .factor = 4};
    json origin = small("mistral");
    origin["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500.0}};
    origin.erase("rope_theta");
    json const found = json::parse(write_hf_config(o, {}, ElementType::f32, origin.dump()));
    EXPECT_EQ(found["model_type"], "mistral");
    EXPECT_EQ(found["eos_token_id"], json({3, 4}));
    EXPECT_EQ(text_of(model(found)), text_of(o));
}

TEST(HfConfig, a_longer_model_has_no_window) {
    for (char const* type : {"llama", "mistral", "qwen2", "qwen3"}) {
        json origin = with(small(type), "sliding_window", 64);
        if (type[0] == 'q') origin["use_sliding_window"] = false;
        ModelOptions o = model(origin);
        EXPECT_EQ(json::parse(write_hf_config(o, {}, ElementType::f32, origin.dump()))["sliding_window"], 64) << type;
        o.max_position_embeddings = 256;
        json const found = json::parse(write_hf_config(o, {}, ElementType::f32, origin.dump()));
        ASSERT_TRUE(found.contains("sliding_window")) << type;
        EXPECT_TRUE(found["sliding_window"].is_null()) << type;
        EXPECT_EQ(found.value("use_sliding_window", false), false) << type;
        EXPECT_EQ(text_of(model(found)), text_of(o)) << type;
    }
}

TEST(HfConfig, attention_in_both_directions_is_refused) {
    for (json const& value : {json(false), json(), json(0)})
        EXPECT_EQ(refusal(with(small("llama"), "is_causal", value)),
                  fmt::format("config.json: `is_causal` is {}: other than true is not supported", value.dump()));
    EXPECT_EQ(text_of(model(with(small("llama"), "is_causal", true))), text_of(model(small("llama"))));
}

TEST(HfConfig, models_that_no_folder_can_hold_are_known_before_they_are_trained) {
    ModelOptions model;
    AttentionOptions const attention;
    for (bool const bias : {false, true}) {
        for (bool const norm : {false, true}) {
            model.qkv_bias = bias;
            model.qk_norm = norm;
            std::string const problem = export_problem(model, attention);
            if (bias && norm) {
                EXPECT_THAT(problem, ::testing::HasSubstr("both model.qkv_bias and model.qk_norm"));
            } else {
                EXPECT_EQ(problem, "");
            }
        }
    }
}

}  // namespace
}  // namespace perigee
