// Reading and writing adapters in PEFT's format, and what is refused.
#include "hf/peft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hf/hf_folder.h"

namespace perigee {
namespace {

using namespace testing;
using ::testing::HasSubstr;

constexpr char kWritten[] = R"({
  "peft_type": "LORA",
  "task_type": "CAUSAL_LM",
  "base_model_name_or_path": "Base",
  "r": 8,
  "lora_alpha": 12,
  "lora_dropout": 0.05,
  "target_modules": [
    "q_proj",
    "down_proj"
  ],
  "bias": "none",
  "fan_in_fan_out": false,
  "inference_mode": true
}
)";

LoraOptions some() { return {.rank = 8, .alpha = 12, .dropout = 0.05, .targets = {"q_proj", "down_proj"}}; }

TEST(Peft, WritesItsConfigAndReadsItBack) {
    EXPECT_EQ(write_adapter_config(some(), "Base"), kWritten);
    MemoryFileSystem files;
    files.make_directories("/a");
    write_text(files, Path("/a") / kAdapterConfigName, kWritten);
    LoraOptions const read = read_adapter_config(files, "/a");
    EXPECT_EQ(read.rank, 8);
    EXPECT_EQ(read.alpha, 12);
    EXPECT_EQ(read.targets, some().targets);
    LoraOptions half = some();
    half.alpha = 12.5;
    EXPECT_THAT(write_adapter_config(half, ""), HasSubstr("\"lora_alpha\": 12.5"));
}

TEST(Peft, NamesParametersAsPeftDoes) {
    ModelOptions model = parse_hf_config(small_config("llama", false), "config").model;
    model.lora = some();
    auto const params = peft_params(model);
    ASSERT_EQ(params.size(), 8u);
    EXPECT_EQ(params[0].name, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    EXPECT_EQ(params[3].name, "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight");
}

TEST(Peft, RefusesAdaptersOfAnotherKind) {
    struct Case {
        char const *from, *to, *said;
    };
    for (auto const& [from, to, said] : {
             Case{"\"LORA\"", "\"IA3\"", "`peft_type` is \"IA3\"; \"LORA\" was expected"},
             {"\"r\": 8", "\"r\": 0", "`r` is 0; 1 to 4096 was expected"},
             {"\"r\": 8", "\"r\": -8", "`r` is -8"},
             {"\"r\": 8,", "", "`r` is missing"},
             {"\"lora_alpha\": 12", "\"lora_alpha\": \"12\"", "`lora_alpha` is \"12\"; a positive number"},
             {"\"none\"", "\"all\"", "`bias` is \"all\"; \"none\" was expected"},
             {"\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true",
              "`fan_in_fan_out` is true; nothing was expected"},
             {"\"r\": 8", "\"r\": 8, \"use_dora\": true", "`use_dora` is true"},
             {"\"r\": 8", "\"r\": 8, \"use_rslora\": true", "`use_rslora` is true"},
             {"\"r\": 8", "\"r\": 8, \"modules_to_save\": [\"lm_head\"]", "`modules_to_save` is [\"lm_head\"]"},
             {"\"r\": 8", "\"r\": 8, \"rank_pattern\": {\"q_proj\": 4}", "`rank_pattern` is "},
             {"\"target_modules\": [\n    \"q_proj\",\n    \"down_proj\"\n  ]", "\"target_modules\": \".*proj\"",
              "`target_modules` is \".*proj\"; a list of layers' names was expected"},
         }) {
        std::string text = kWritten;
        size_t const at = text.find(from);
        ASSERT_NE(at, text.npos) << from;
        text.replace(at, std::string_view(from).size(), to);
        MemoryFileSystem files;
        files.make_directories("/a");
        write_text(files, Path("/a") / kAdapterConfigName, text);
        EXPECT_THAT(error_of(Category::config, [&] { read_adapter_config(files, "/a"); }), HasSubstr(said));
    }
    // Keys that are off may be present.
    std::string text = kWritten;
    text.replace(text.find("\"r\": 8"), 6,
                 "\"r\": 8, \"use_dora\": false, \"rank_pattern\": {}, \"modules_to_save\": null");
    MemoryFileSystem files;
    files.make_directories("/a");
    write_text(files, Path("/a") / kAdapterConfigName, text);
    EXPECT_EQ(read_adapter_config(files, "/a").rank, 8);
    EXPECT_EQ(error_of(Category::config, [&] { read_adapter_config(files, "/b"); }), "/b holds no adapter_config.json");
}

/// The error of kWritten with other keys besides, given as JSON; empty where it is accepted.
std::string refusal_with(std::string const& keys) {
    auto config = nlohmann::ordered_json::parse(kWritten);
    config.update(nlohmann::ordered_json::parse(keys));
    MemoryFileSystem files;
    files.make_directories("/a");
    write_text(files, Path("/a") / kAdapterConfigName, config.dump());
    try {
        read_adapter_config(files, "/a");
        return "";
    } catch (Error const& error) {
        return error.category() == Category::config ? error.what() : "another category";
    }
}

TEST(Peft, RefusesWhatBeginsOtherwiseAndKeysThatItDoesNotKnow) {
    std::string const file = "/a/adapter_config.json: ";
    for (char const* const init : {"pissa", "pissa_niter_4", "olora", "orthogonal", "loftq", "corda", "eva"})
        EXPECT_EQ(refusal_with(fmt::format(R"({{"init_lora_weights": "{}"}})", init)),
                  fmt::format("{}`init_lora_weights` is \"{}\"; true, false or \"gaussian\" was expected", file, init));
    for (char const* const init : {"true", "false", "\"gaussian\""})
        EXPECT_EQ(refusal_with(fmt::format(R"({{"init_lora_weights": {}}})", init)), "");
    EXPECT_EQ(refusal_with(R"({"alora_invocation_tokens": [5, 6]})"),
              file + "`alora_invocation_tokens` is [5,6]; nothing was expected");
    EXPECT_EQ(refusal_with(R"({"layers_to_transform": 0})"), file + "`layers_to_transform` is 0; nothing was expected");
    for (auto const& [key, value] : {std::pair{"use_newer", "true"}, {"newer_config", R"({"a":1})"}, {"newer", "2"}})
        EXPECT_EQ(refusal_with(fmt::format(R"({{"{}": {}}})", key, value)),
                  fmt::format("{}`{}` is {}: a key this program does not know is not supported", file, key, value));
    EXPECT_EQ(refusal_with(R"({"use_newer": false, "newer_config": {}, "newer": 0, "a": null, "b": "", "c": []})"), "");
}

TEST(Peft, AcceptsTheKeysThatPeftWrites) {
    EXPECT_EQ(refusal_with(R"({"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
        "auto_mapping": {"base_model_class": "LlamaForCausalLM", "parent_library": "transformers"},
        "corda_config": null, "ensure_weight_tying": true, "eva_config": null, "exclude_modules": ["lm_head"],
        "init_lora_weights": true, "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
        "loftq_config": {}, "lora_bias": false, "megatron_config": null, "megatron_core": "megatron.core",
        "modules_to_save": null, "peft_version": "0.18.0", "qalora_group_size": 16, "rank_pattern": {},
        "revision": "main", "target_parameters": null, "trainable_token_indices": null, "use_bdlora": null,
        "use_dora": false, "use_qalora": false, "use_rslora": false})"),
              "");
}

}  // namespace
}  // namespace perigee
