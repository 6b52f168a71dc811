#include "hf/peft.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "io/strict_json.h"
#include "model/llama.h"

namespace perigee {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMaxAdapterConfigBytes = int64_t{1} << 20;
constexpr int kMaxDepth = 8;
constexpr int64_t kMostRank = 1 << 12;
constexpr char kPrefix[] = "base_model.model.";

/// Whether a key has no effect: missing, null, false, or an empty list, object or text. 0 may name a layer or token.
bool is_off(OrderedJson const& value) {
    return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

/// Keys that change what an adapter computes. They must be off.
constexpr char const* kOff[] = {"use_rslora",
                                "use_dora",
                                "use_qalora",
                                "fan_in_fan_out",
                                "lora_bias",
                                "modules_to_save",
                                "rank_pattern",
                                "alpha_pattern",
                                "layers_to_transform",
                                "layer_replication",
                                "target_parameters",
                                "trainable_token_indices",
                                "alora_invocation_tokens"};

/// Keys that are read, or that need not be: their effect is in the tensors, or they only go with one of kOff.
constexpr char const* kKnown[] = {"peft_type",
                                  "peft_version",
                                  "task_type",
                                  "auto_mapping",
                                  "base_model_name_or_path",
                                  "revision",
                                  "inference_mode",
                                  "r",
                                  "lora_alpha",
                                  "lora_dropout",
                                  "bias",
                                  "init_lora_weights",
                                  "target_modules",
                                  "exclude_modules",
                                  "layers_pattern",
                                  "megatron_config",
                                  "megatron_core",
                                  "qalora_group_size",
                                  "ensure_weight_tying"};

bool is_known(std::string const& key) {
    auto const same = [&](char const* known) { return key == known; };
    return std::ranges::any_of(kOff, same) || std::ranges::any_of(kKnown, same);
}

std::set<std::string> as_set(std::vector<std::string> const& texts) { return {texts.begin(), texts.end()}; }

/// adapter_config.json with type checks.
class AdapterConfig {
  public:
    AdapterConfig(OrderedJson const& json, std::string const& path) : json_(json), path_(path) {
        if (!json.is_object()) fail(Category::config, "{} is no JSON object", path);
    }

    OrderedJson value(char const* key) const { return json_.contains(key) ? json_[key] : OrderedJson(); }
    void expect(char const* key, bool fits, std::string const& expected) const {
        if (!fits)
            fail(Category::config, "{}: `{}` is {}; {} was expected", path_, key,
                 json_.contains(key) ? json_excerpt(json_[key]) : "missing", expected);
    }
    LoraOptions options() const {
        LoraOptions lora;
        expect("peft_type", value("peft_type") == "LORA", "\"LORA\"");
        for (char const* const key : kOff) expect(key, is_off(value(key)), "nothing");
        // With another value PEFT may change the weights of the base when it loads the adapters.
        OrderedJson const init = value("init_lora_weights");
        expect("init_lora_weights", init.is_null() || init.is_boolean() || init == "gaussian",
               "true, false or \"gaussian\"");
        check_unknown();
        expect("bias", !json_.contains("bias") || value("bias") == "none", "\"none\"");
        OrderedJson const rank = value("r"), alpha = value("lora_alpha"), targets = value("target_modules");
        expect("r", rank.is_number_unsigned() && rank > 0 && rank <= kMostRank, fmt::format("1 to {}", kMostRank));
        expect("lora_alpha", alpha.is_number() && alpha > 0, "a positive number");
        expect("target_modules",
               targets.is_array() && !targets.empty() &&
                   std::ranges::all_of(targets, [](OrderedJson const& target) { return target.is_string(); }),
               "a list of layers' names");
        lora.rank = rank.get<int64_t>(), lora.alpha = alpha.get<double>();
        lora.targets = targets.get<std::vector<std::string>>();
        return lora;
    }

  private:
    void check_unknown() const {
        for (auto const& [key, value] : json_.items())
            if (!is_known(key) && !is_off(value) && value != 0)
                fail(Category::config, "{}: `{}` is {}: a key this program does not know is not supported", path_,
                     key.substr(0, 80), json_excerpt(value));
    }

    OrderedJson const& json_;
    std::string const& path_;
};

}  // namespace

std::string peft_name(std::string const& parameter) { return kPrefix + parameter; }

std::vector<ParamSpec> peft_params(ModelOptions const& model) {
    std::vector<ParamSpec> params;
    for (ParamSpec& spec : llama_params(model)) {
        if (!is_adapter(spec.name)) continue;
        spec.name = peft_name(spec.name);
        params.push_back(std::move(spec));
    }
    return params;
}

std::string write_adapter_config(LoraOptions const& lora, std::string const& base) {
    OrderedJson const config = {{"peft_type", "LORA"},
                                {"task_type", "CAUSAL_LM"},
                                {"base_model_name_or_path", base},
                                {"r", lora.rank},
                                {"lora_alpha", lora.alpha == static_cast<double>(static_cast<int64_t>(lora.alpha))
                                                   ? OrderedJson(static_cast<int64_t>(lora.alpha))
                                                   : OrderedJson(lora.alpha)},
                                {"lora_dropout", lora.dropout},
                                {"target_modules", lora.targets},
                                {"bias", "none"},
                                {"fan_in_fan_out", false},
                                {"inference_mode", true}};
    return config.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

LoraOptions read_adapter_config(FileSystem& files, Path const& folder) {
    std::string const path = (folder / kAdapterConfigName).string();
    if (!files.exists(path)) fail(Category::config, "{} holds no {}", folder.string(), kAdapterConfigName);
    std::string const text = files.read_text(path, kMaxAdapterConfigBytes);
    check_json(text, path, Category::config, kMaxDepth);
    return AdapterConfig(OrderedJson::parse(text), path).options();
}

HfWeights open_adapters(FileSystem& files, Path const& folder, LoraOptions const& lora) {
    LoraOptions const found = read_adapter_config(files, folder);
    auto const expect = [&](char const* key, bool same, std::string const& there, std::string const& here) {
        if (!same)
            fail(Category::config, "lora.init_from: the adapters in {} are of {} {}, and lora.{} is {}",
                 folder.string(), key, there, key, here);
    };
    expect("rank", found.rank == lora.rank, std::to_string(found.rank), std::to_string(lora.rank));
    expect("alpha", found.alpha == lora.alpha, fmt::format("{}", found.alpha), fmt::format("{}", lora.alpha));
    expect("targets", as_set(found.targets) == as_set(lora.targets), OrderedJson(found.targets).dump(),
           OrderedJson(lora.targets).dump());
    return {files, folder, kAdapterWeightsName};
}

}  // namespace perigee
