#include "hf/config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/manifest.h"
#include "hf/schema_json.h"
#include "io/strict_json.h"

namespace perigee {

namespace {

using Json = nlohmann::json;  // sorted keys, as transformers writes them

constexpr int kMaxConfigDepth = 16;
constexpr char kOwnKey[] = "perigee";
constexpr char kOriginalLength[] = "original_max_position_embeddings";

/// What tells one architecture from another, and what its fields mean where they are absent.
struct Architecture {
    char const* name;
    char const* model_type;
    bool qkv_bias = false;
    bool qk_norm = false;
    int64_t max_position_embeddings = 0;
    int64_t num_key_value_heads = 0;
    int64_t head_dim = 0;
};
constexpr std::array kArchitectures = {
    Architecture{"LlamaForCausalLM", "llama", false, false, 2048, 0, 0},
    Architecture{"MistralForCausalLM", "mistral", false, false, 131072, 8, 0},
    Architecture{"Qwen2ForCausalLM", "qwen2", true, false, 32768, 32, 0},
    Architecture{"Qwen3ForCausalLM", "qwen3", false, true, 32768, 32, 128},
};

/// Fields of config.json that mean what the model option of the same name means.
constexpr char const* kShared[] = {
    "vocab_size",          "hidden_size",         "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim",          "max_position_embeddings",
    "rope_theta",          "rms_norm_eps",        "initializer_range", "tie_word_embeddings"};
constexpr char const* kRequired[] = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                     "num_attention_heads"};

/// Fields that say nothing about what the model computes: of the file, of tokens, of programs, of sampling.
constexpr char const* kWithoutMeaning[] = {"architectures",
                                           "model_type",
                                           "transformers_version",
                                           "torch_dtype",
                                           "dtype",
                                           "use_cache",
                                           "bos_token_id",
                                           "eos_token_id",
                                           "pad_token_id",
                                           "unk_token_id",
                                           "sep_token_id",
                                           "_name_or_path",
                                           "_commit_hash",
                                           "max_window_layers",
                                           "id2label",
                                           "label2id",
                                           "return_dict",
                                           "output_hidden_states",
                                           "output_attentions",
                                           "chunk_size_feed_forward",
                                           "is_encoder_decoder",
                                           "is_decoder",
                                           "is_llama_config",
                                           "_attn_implementation_autoset",
                                           "_attn_implementation",
                                           "attn_implementation",
                                           "tokenizer_class",
                                           "name_or_path",
                                           "num_labels",
                                           "problem_type",
                                           "model_max_length",
                                           "prefix",
                                           "transformers.js_config",
                                           "max_length",
                                           "max_new_tokens",
                                           "min_length",
                                           "do_sample",
                                           "temperature",
                                           "top_k",
                                           "top_p",
                                           "typical_p",
                                           "repetition_penalty",
                                           "length_penalty",
                                           "no_repeat_ngram_size",
                                           "encoder_no_repeat_ngram_size",
                                           "num_beams",
                                           "num_beam_groups",
                                           "num_return_sequences",
                                           "diversity_penalty",
                                           kOwnKey};

/// Whether a field is a note of the program that wrote the file.
bool is_note(std::string const& key) { return key.starts_with("unsloth_"); }

/// What describes a way of scaling.
std::vector<std::string> rope_keys(RopeType type) {
    switch (type) {
        case RopeType::standard:
            return {"rope_type"};
        case RopeType::linear:
            return {"rope_type", "factor"};
        case RopeType::llama3:
            return {"rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
        case RopeType::yarn:
            return {"rope_type", "factor",           "beta_fast",
                    "beta_slow", "attention_factor", "original_max_position_embeddings"};
    }
    return {};
}

template <class List>
bool is_in(std::string const& key, List const& list) {
    return std::ranges::find_if(list, [&](char const* known) { return key == known; }) != std::end(list);
}

template <class Options>
Schema schema_of(Options& options) {
    Schema schema;
    describe(schema, options);
    return schema;
}

/// The same model, wherever it began.
bool equal(ModelOptions a, ModelOptions b) {
    a.init_from = b.init_from;
    for (ModelOptions* const model : {&a, &b})
        model->rope_scaling = normalised(model->rope_scaling, model->max_position_embeddings);
    return write_json(schema_of(a)) == write_json(schema_of(b));
}

/// One untrusted config.json. Every field is either used, held against the only value this program supports, or
/// refused.
class Parser {
  public:
    Parser(std::string const& where, Json const& root) : where_(where), root_(root) {
        if (!root.is_object()) fail(Category::config, "{}: not a JSON object", where);
    }

    ModelOptions model() {
        Architecture const& architecture = find_architecture();
        ModelOptions model;
        model.qkv_bias = architecture.qkv_bias;
        model.qk_norm = architecture.qk_norm;
        model.max_position_embeddings = architecture.max_position_embeddings;
        model.num_key_value_heads = architecture.num_key_value_heads;
        model.head_dim = architecture.head_dim;
        model.rms_norm_eps = 1e-6;
        for (char const* key : kRequired)
            if (field(key).is_null()) fail(Category::config, "{}: `{}` is missing", where_, key);
        Json shared = Json::object();
        for (char const* key : kShared) shared[key] = field(key);
        // Stated as null, it is not the architecture's default but one per query head.
        if (root_.contains("num_key_value_heads") && shared["num_key_value_heads"].is_null())
            model.num_key_value_heads = 0;
        read_json(schema_of(model), shared.dump(), where_);
        read_rope(model);
        demand("hidden_act", "silu");
        demand("attention_bias", false);
        demand("mlp_bias", false);
        demand("pretraining_tp", 1);
        demand("attention_dropout", 0.0);
        demand("partial_rotary_factor", 1.0);
        check_causal();
        check_window(architecture, model);
        for (auto const& [key, value] : root_.items())
            if (!used_.contains(key) && !is_in(key, kWithoutMeaning) && !is_note(key) && !is_off(value))
                refuse(key, "a field this program does not know");
        for (std::string const& problem : problems(model)) fail(Category::config, "{}: {}", where_, problem);
        return model;
    }

    std::optional<AttentionOptions> attention(ModelOptions const& model) const {
        if (!root_.contains(kOwnKey)) return std::nullopt;
        Json const& own = root_[kOwnKey];
        if (!own.is_object() || own.size() != 1 || !own.contains("attention"))
            refuse(kOwnKey, "other than an object with the key `attention`");
        AttentionOptions attention;
        read_json(schema_of(attention), own["attention"].dump(), where_ + ": `perigee`: `attention`");
        for (std::string const& problem : problems(attention, model)) fail(Category::config, "{}: {}", where_, problem);
        return attention;
    }

    Architecture const& find_architecture() const {
        Json const type = root_.value("model_type", Json()), names = root_.value("architectures", Json());
        auto const* const found = std::ranges::find_if(kArchitectures, [&](auto& a) { return type == a.model_type; });
        if (found == kArchitectures.end())
            fail(Category::config, "{}: model_type {} is not supported; llama, mistral, qwen2 and qwen3 are", where_,
                 json_excerpt(type));
        if (!names.is_null() && names != Json::array({found->name}))
            fail(Category::config, "{}: architectures {} is not supported; [\"{}\"] is", where_, json_excerpt(names),
                 found->name);
        return *found;
    }

  private:
    /// Null where it is absent.
    Json field(std::string const& key) {
        used_.insert(key);
        return root_.value(key, Json());
    }
    static bool is_off(Json const& value) {
        return value.is_null() || value == false || value == 0 || value == "" ||
               (value.is_structured() && value.empty());
    }
    void demand(std::string const& key, Json const& only) {
        if (Json const value = field(key); !value.is_null() && value != only)
            refuse(key, fmt::format("other than {}", only.dump()));
    }
    [[noreturn]] void refuse(std::string const& key, std::string const& what) const {
        fail(Category::config, "{}: `{}` is {}: {} is not supported", where_, key.substr(0, 80),
             json_excerpt(root_.at(key)), what);
    }

    /// The releases before 5 have rope_theta and rope_scaling, which newer ones join to rope_parameters.
    void read_rope(ModelOptions& model) {
        Json old = field("rope_scaling"), joined = field("rope_parameters");
        if (!is_off(old) && !is_off(joined)) refuse("rope_scaling", "stating it beside rope_parameters");
        std::string const key = is_off(old) ? "rope_parameters" : "rope_scaling";
        Json rope = is_off(old) ? joined : old;
        if (is_off(rope)) return;
        if (!rope.is_object()) refuse(key, "other than an object");
        std::string const where = where_ + ": `" + key + "`";
        for (auto const& [name, only] : {std::pair{"partial_rotary_factor", Json(1.0)}, {"truncate", Json(true)}}) {
            if (rope.contains(name) && !rope[name].is_null() && rope[name] != only)
                fail(Category::config, "{}: `{}` is {}: other than {} is not supported", where, name,
                     json_excerpt(rope[name]), only.dump());
            rope.erase(name);
        }
        if (rope.contains("rope_theta")) {
            Json const theta{{"rope_theta", rope["rope_theta"]}};
            read_json(schema_of(model), theta.dump(), where);
            rope.erase("rope_theta");
        }
        if (rope.contains("type")) {
            if (rope.contains("rope_type") && rope["rope_type"] != rope["type"])
                fail(Category::config, "{}: `type` is {} but `rope_type` is {}", where, json_excerpt(rope["type"]),
                     json_excerpt(rope["rope_type"]));
            rope["rope_type"] = rope["type"];
            rope.erase("type");
        }
        drop_without_use(rope, model.rope_scaling, where);
        read_json(schema_of(model.rope_scaling), rope.dump(), where);
        check_stated(rope, model.rope_scaling, where);
    }

    /// What a type does not use is no part of the model: transformers passes over it, and so does this.
    static void drop_without_use(Json& rope, RopeScaling& scaling, std::string const& where) {
        Json const type{{"rope_type", rope.value("rope_type", Json("default"))}};
        read_json(schema_of(scaling), type.dump(), where);
        auto const used = rope_keys(scaling.type);
        Schema const all = schema_of(scaling);
        for (Field const& known : all.fields())
            if (std::ranges::find(used, known.key) == used.end()) rope.erase(known.key);
    }
    /// Fields that have no default.
    static void check_stated(Json const& rope, RopeScaling const& scaling, std::string const& where) {
        std::vector<std::string> needed;
        if (scaling.type != RopeType::standard) needed.push_back("factor");
        if (scaling.type == RopeType::llama3) needed.insert(needed.end(), {"low_freq_factor", "high_freq_factor"});
        for (std::string const& name : needed)
            if (rope.value(name, Json()).is_null()) fail(Category::config, "{}: `{}` is missing", where, name);
    }

    /// Anything but true, null too, is attention in both directions.
    void check_causal() {
        if (Json const causal = field("is_causal"); root_.contains("is_causal") && causal != true)
            refuse("is_causal", "other than true");
    }

    void check_window(Architecture const& architecture, ModelOptions const& model) {
        Json const window = field("sliding_window");
        if (model.qkv_bias || model.qk_norm) {  // Qwen: a window that is stated but switched off
            demand("use_sliding_window", false);
        } else if (!root_.contains("sliding_window") && architecture.model_type == std::string("mistral")) {
            fail(Category::config, "{}: `sliding_window` is missing, which for mistral means 4096: not supported",
                 where_);
        } else if (!window.is_null() &&
                   !(window.is_number() && window.get<double>() >= double(model.max_position_embeddings))) {
            refuse("sliding_window", "a window shorter than max_position_embeddings");
        }
        Json const types = field("layer_types");
        if (!types.is_null() &&
            types != Json(std::vector<std::string>(static_cast<size_t>(model.num_hidden_layers), "full_attention")))
            refuse("layer_types", "other than `full_attention` for each layer");
    }

    std::string const& where_;
    Json const& root_;
    std::set<std::string> used_;
};

Architecture const& architecture_for(ModelOptions const& model) {
    if (model.key_conv > 0)
        fail(Category::config,
             "no architecture of Hugging Face has attention.key_conv ({}): the model cannot be exported",
             model.key_conv);
    for (Architecture const& known : kArchitectures)
        if (known.qkv_bias == model.qkv_bias && known.qk_norm == model.qk_norm) return known;
    fail(Category::config,
         "no architecture of Hugging Face has both model.qkv_bias and model.qk_norm: the model cannot be exported");
}

Json rope_json(RopeScaling scaling) {
    Json const all = Json::parse(write_json(schema_of(scaling)));
    Json rope;
    for (std::string const& key : rope_keys(scaling.type)) rope[key] = all[key];
    for (char const* key : {"attention_factor", kOriginalLength})
        if (rope.contains(key) && rope[key] == 0) rope.erase(key);  // 0 stands for the default
    return rope;
}

void write_model(Json& root, ModelOptions model) {
    Json const all = Json::parse(write_json(schema_of(model)));
    for (char const* key : kShared) root[key] = all[key];
    root["num_key_value_heads"] = model.kv_heads();
    root["head_dim"] = model.head_size();
    // The folder's window was as long as its model; this model may be longer, and attends to all keys.
    if (root.contains("sliding_window")) root["sliding_window"] = nullptr;
    root.erase("rope_parameters");
    RopeScaling rope = model.rope_scaling;
    if (rope.type == RopeType::llama3) rope = normalised(rope, model.max_position_embeddings);  // no key may be missing
    root["rope_scaling"] = rope.type == RopeType::standard ? Json() : rope_json(rope);
}

/// What an export without an origin has to say beyond the model's options.
Json fresh_root(Architecture const& architecture) {
    Json root{{"attention_dropout", 0.0}, {"hidden_act", "silu"},   {"use_cache", true},
              {"torch_dtype", Json()},    {"bos_token_id", Json()}, {"eos_token_id", Json()}};
    std::string const type = architecture.model_type;
    if (type == "llama") root["mlp_bias"] = false;
    if (type != "qwen2") root["attention_bias"] = false;
    if (type != "llama") root["use_sliding_window"] = false;
    return root;
}

}  // namespace

HfConfig parse_hf_config(std::string text, std::string const& where) {
    if (std::ssize(text) > kMaxConfigBytes)
        fail(Category::config, "{} has {} bytes; at most {} are accepted", where, text.size(), kMaxConfigBytes);
    check_json(text, where, Category::config, kMaxConfigDepth);
    Json const root = Json::parse(text);
    Parser parser(where, root);
    HfConfig config;
    config.model = parser.model();
    config.text = std::move(text);
    config.attention = parser.attention(config.model);
    return config;
}

bool says_its_model(FileSystem& files, Path const& folder) {
    return files.exists(folder / kConfigName) || files.exists(folder / kManifestName);
}

HfConfig read_hf_config(FileSystem& files, Path const& folder) {
    Path const path = folder / kConfigName;
    if (!files.exists(path)) fail(Category::config, "{} is missing: not a Hugging Face folder", path.string());
    return parse_hf_config(files.read_text(path, kMaxConfigBytes), path.string());
}

std::string write_hf_config(ModelOptions const& model, AttentionOptions const& attention, ElementType type,
                            std::string const& base) {
    Json root;
    Architecture const* architecture = &architecture_for(model);
    bool same = false;
    if (base.empty()) {
        root = fresh_root(*architecture);
    } else {
        root = Json::parse(base);
        std::string const where = kConfigName;
        Parser parser(where, root);
        Architecture const& before = parser.find_architecture();
        if (before.qkv_bias == model.qkv_bias && before.qk_norm == model.qk_norm) architecture = &before;
        same = equal(parser.model(), model);
    }
    root["architectures"] = {architecture->name};
    root["model_type"] = architecture->model_type;
    if (!same) write_model(root, model);
    if (same && model.rope_scaling.type == RopeType::llama3)
        for (char const* key : {"rope_scaling", "rope_parameters"})
            if (root.contains(key) && root[key].is_object())
                root[key].emplace(kOriginalLength, model.max_position_embeddings);  // where it is missing
    root[root.contains("dtype") ? "dtype" : "torch_dtype"] = config_name(type);
    AttentionOptions own = attention;
    root[kOwnKey] = {{"attention", Json::parse(write_json(schema_of(own)))}};
    return root.dump(2, ' ', /*ensure_ascii=*/true) + "\n";
}

std::string with_ends(std::string const& text, std::vector<int32_t> const& ends, std::string const& where) {
    if (ends.empty()) return text;
    check_json(text, where, Category::config, kMaxConfigDepth);
    Json root = Json::parse(text);
    if (!root.is_object()) fail(Category::config, "{}: not a JSON object", where);
    Json const said = root.value("eos_token_id", Json());
    Json ids = said.is_array() ? said : said.is_null() ? Json::array() : Json::array({said});
    size_t const before = ids.size();
    for (int32_t const id : ends)
        if (std::ranges::find(ids, Json(id)) == ids.end()) ids.push_back(id);
    if (ids.size() == before) return text;
    root["eos_token_id"] = ids.size() == 1 ? ids[0] : ids;
    return root.dump(2, ' ', /*ensure_ascii=*/true) + "\n";
}

std::string export_problem(ModelOptions const& model, AttentionOptions const& attention) {
    try {
        ModelOptions const read =
            parse_hf_config(write_hf_config(model, attention, ElementType::f32, ""), kConfigName).model;
        ModelOptions wanted = model;
        wanted.num_key_value_heads = model.kv_heads();
        wanted.head_dim = model.head_size();
        return equal(read, wanted) ? "" : "config.json would describe another model";
    } catch (Error const& error) {
        return error.what();
    }
}

}  // namespace perigee
