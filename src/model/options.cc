#include "model/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include "base/error.h"

namespace perigee {

RopeScaling normalised(RopeScaling const& rope, int64_t max_position_embeddings) {
    RopeScaling said{.type = rope.type};
    if (rope.type == RopeType::standard) return said;
    said.factor = rope.factor;
    if (rope.type == RopeType::linear) return said;
    said.original_max_position_embeddings =
        rope.original_max_position_embeddings > 0 ? rope.original_max_position_embeddings : max_position_embeddings;
    if (rope.type == RopeType::llama3) {
        said.low_freq_factor = rope.low_freq_factor;
        said.high_freq_factor = rope.high_freq_factor;
    } else {
        said.beta_fast = rope.beta_fast;
        said.beta_slow = rope.beta_slow;
        said.attention_factor = rope.attention_factor;
    }
    return said;
}

void describe(Schema& schema, RopeScaling& o) {
    schema.choice("rope_type", o.type,
                  {{"default", RopeType::standard},
                   {"linear", RopeType::linear},
                   {"llama3", RopeType::llama3},
                   {"yarn", RopeType::yarn}},
                  "how rotary frequencies are stretched to contexts longer than the original");
    schema.add("factor", o.factor, at_least(1), "ratio of the new context length to the original");
    schema.add("original_max_position_embeddings", o.original_max_position_embeddings, between(0, 1 << 30),
               "context length before stretching (llama3, yarn); 0 takes max_position_embeddings");
    schema.add("low_freq_factor", o.low_freq_factor, above(0),
               "llama3: waves longer than the original length over this are stretched fully");
    schema.add("high_freq_factor", o.high_freq_factor, above(0),
               "llama3: waves shorter than the original length over this are kept");
    schema.add("beta_fast", o.beta_fast, above(0), "yarn: dimensions turning more often than this are kept");
    schema.add("beta_slow", o.beta_slow, above(0), "yarn: dimensions turning less often than this are stretched fully");
    schema.add("attention_factor", o.attention_factor, at_least(0),
               "yarn: factor on queries and keys after rotation; 0 takes 0.1 ln(factor) + 1");
}

namespace {

constexpr char const* kLoraTargets[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

}  // namespace

bool LoraOptions::has(std::string_view target) const {
    return rank > 0 && std::ranges::find(targets, target) != targets.end();
}

void describe(Schema& schema, LoraOptions& o) {
    schema
        .add("rank", o.rank, between(0, 1 << 12),
             "rank of the adapters. Above 0 the model's own weights are frozen, and checkpoints hold only the "
             "adapters. 0: no adapters")
        .defines_model();
    schema.add("alpha", o.alpha, above(0), "adapters are scaled by alpha / rank").defines_model();
    schema.add("dropout", o.dropout, between(0, 0.99),
               "dropout rate on the adapters' inputs in training; q, k and v share one mask, and so do gate and up");
    schema
        .add("targets", o.targets,
             "linear layers of the blocks that get an adapter: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
             "down_proj")
        .defines_model();
    schema.add("init_from", o.init_from,
               "folder in PEFT's format (adapter_config.json, adapter_model.safetensors) with the adapters that a new "
               "run starts from, or that eval and generate use without a checkpoint. Rank, alpha and targets must "
               "match. Empty: new adapters with B = 0");
}

// The upper ends keep every size of a tensor, and the sum over a model's, within 64 bits.
void describe(Schema& schema, ModelOptions& o) {
    schema
        .add("vocab_size", o.vocab_size, between(0, 1 << 28),
             "rows of the embedding; 0 takes the tokenizer's size rounded up to a multiple of 64")
        .defines_model();
    schema.add("hidden_size", o.hidden_size, between(1, 1 << 20), "width of the residual stream").defines_model();
    schema.add("intermediate_size", o.intermediate_size, between(1, 1 << 22), "width of the SwiGLU layer")
        .defines_model();
    schema.add("num_hidden_layers", o.num_hidden_layers, between(1, kMostLayers), "number of transformer blocks")
        .defines_model();
    schema.add("num_attention_heads", o.num_attention_heads, between(1, 1 << 12), "query heads").defines_model();
    schema
        .add("num_key_value_heads", o.num_key_value_heads, between(0, 1 << 12),
             "key/value heads, each shared by a group of query heads; 0 takes num_attention_heads")
        .defines_model();
    schema
        .add("head_dim", o.head_dim, between(0, 1 << 12),
             "width of one head; 0 takes hidden_size / num_attention_heads")
        .defines_model();
    schema.add("max_position_embeddings", o.max_position_embeddings, between(1, 1 << 30),
               "longest document the model is meant for");
    schema.add("rope_theta", o.rope_theta, above(1), "base of the rotary frequencies").defines_model();
    schema.section("rope_scaling", o.rope_scaling, "stretching of the rotary frequencies to longer contexts")
        .defines_model();
    schema.add("rms_norm_eps", o.rms_norm_eps, above(0), "added to the mean square inside RMSNorm").defines_model();
    schema.add("initializer_range", o.initializer_range, above(0),
               "standard deviation of initial weights; output projections divide it by sqrt(2 num_hidden_layers)");
    schema.add("tie_word_embeddings", o.tie_word_embeddings, "the classifier uses the embedding's weights")
        .defines_model();
    schema.add("qkv_bias", o.qkv_bias, "bias on the query, key and value projections (Qwen2)").defines_model();
    schema.add("qk_norm", o.qk_norm, "RMSNorm on every query and key head before rotation (Qwen3)").defines_model();
    schema.add("init_from", o.init_from,
               "a new run starts from the weights in this folder: Hugging Face's, or a checkpoint; its config.json, or "
               "what the checkpoint says of its run, supplies the defaults of this section and of attention, and its "
               "tokenizer that of data.tokenizer");
}

void describe_key_conv(Schema& attention, ModelOptions& o) {
    attention
        .choice("key_conv", o.key_conv, {{"none", int64_t{0}}, {"3", int64_t{3}}, {"5", int64_t{5}}},
                "width of a causal per-channel convolution of keys before RoPE, with a residual, in all layers; its "
                "weights start at zero. Needs parallel.context of 1")
        .defines_model();
}

int64_t weights_per_layer(ModelOptions const& o) {
    int64_t const attention = (2 * o.num_attention_heads + 2 * o.kv_heads()) * o.head_size();
    return o.hidden_size * (attention + 3 * o.intermediate_size);
}

std::vector<std::string> problems(ModelOptions const& o) {
    std::vector<std::string> found;
    if (o.head_dim == 0 && o.hidden_size % o.num_attention_heads != 0)
        found.push_back(
            fmt::format("model.hidden_size = {} is not a multiple of model.num_attention_heads = {}; set "
                        "model.head_dim or change one of them",
                        o.hidden_size, o.num_attention_heads));
    if (o.num_attention_heads % o.kv_heads() != 0)
        found.push_back(
            fmt::format("model.num_attention_heads = {} is not a multiple of model.num_key_value_heads = {}",
                        o.num_attention_heads, o.kv_heads()));
    if (o.head_size() % 2 != 0)
        found.push_back(fmt::format("model.head_dim = {} is odd; rotary embedding needs pairs", o.head_size()));
    for (std::string const& target : o.lora.targets)
        if (std::ranges::find(kLoraTargets, target) == std::end(kLoraTargets))
            found.push_back(fmt::format("lora.targets: `{}` is no linear layer of a block; there are {}", target,
                                        fmt::join(kLoraTargets, ", ")));
    if (o.lora.rank > 0 && o.lora.targets.empty())
        found.push_back(fmt::format("lora.rank is {} and lora.targets is empty: name a target", o.lora.rank));
    if (o.lora.rank == 0 && !o.lora.init_from.empty())
        found.push_back("lora.init_from has no effect where lora.rank is 0: give the adapters' rank");
    RopeScaling const& rope = o.rope_scaling;
    if (rope.type == RopeType::llama3 && rope.high_freq_factor <= rope.low_freq_factor)
        found.push_back(fmt::format("model.rope_scaling.high_freq_factor = {} must exceed low_freq_factor = {}",
                                    rope.high_freq_factor, rope.low_freq_factor));
    if (rope.type == RopeType::yarn && rope.beta_fast <= rope.beta_slow)
        found.push_back(fmt::format("model.rope_scaling.beta_fast = {} must exceed beta_slow = {}", rope.beta_fast,
                                    rope.beta_slow));
    if (rope.type == RopeType::standard && rope.factor != 1)
        found.push_back(fmt::format("model.rope_scaling.factor = {} has no effect with rope_type: default; name a type",
                                    rope.factor));
    return found;
}

void describe(Schema& schema, MobaOptions& o) {
    schema.add("block_size", o.block_size, between(1, 1 << 30), "keys per block").defines_model();
    schema
        .add("top_k", o.top_k, between(1, 1 << 16),
             "blocks each query attends, its own included; 1 is attention inside the block only")
        .defines_model();
    schema
        .add("force_previous", o.force_previous,
             "the block before the query's own is always among the top_k - 1 chosen ones")
        .defines_model();
    schema
        .add("force_first", o.force_first,
             "block 0 of the document is always one of the top_k - 1 selected blocks (top_k of at least 3)")
        .defines_model();
    schema
        .choice("shared_selection", o.selection,
                {{"none", MobaSelection::per_head}, {"group", MobaSelection::per_group}},
                "none: every query head chooses its blocks; group: one choice for the query heads that share a "
                "key/value head")
        .defines_model();
}

void describe(Schema& schema, FullLayers& o) {
    schema.add("last", o.last, between(0, kMostLayers), "the last so many layers stay full");
    schema.add("layers", o.layers, between(0, kMostLayers), "numbers of further layers that stay full, counted from 0");
}

void describe(Schema& schema, AttentionSwitch& o) {
    schema.add("step", o.step, between(0, kMostSteps), "first step, counted from 0, that uses this kind");
    schema.choice("kind", o.kind, {{"full", AttentionKind::full}, {"moba", AttentionKind::moba}},
                  "attention of the layers that are not in full_layers");
}

namespace {

template <class T>
using Type = std::type_identity<T>;

/// Calls visit(Type<Rule>{}) for every rule of Selection that selects blocks.
template <class Visit>
void each_rule(Visit visit) {
    [&]<class Full, class... Rules>(Type<std::variant<Full, Rules...>>) {
        (visit(Type<Rules>{}), ...);
    }(Type<Selection>{});
}

std::vector<std::pair<std::string, std::string>> selection_names() {
    std::vector<std::pair<std::string, std::string>> names;
    each_rule([&]<class Rule>(Type<Rule>) { names.emplace_back(Rule::kName, Rule::kName); });
    return names;
}

Selection sparse_selection(AttentionOptions const& o, int64_t layer, uint64_t seed) {
    std::optional<Selection> found;
    each_rule([&]<class Rule>(Type<Rule>) {
        if (o.selection != Rule::kName) return;
        if constexpr (std::is_same_v<Rule, MobaOptions>) {
            found = o.moba;
        } else {
            Rule rule{.block_size = o.moba.block_size, .top_k = o.moba.top_k};
            if constexpr (requires { rule.seed; }) rule.seed = seed;
            if constexpr (requires { rule.layer; }) rule.layer = layer;
            found = rule;
        }
    });
    PERIGEE_CHECK(found.has_value(), "no selection of blocks is named {}", o.selection);
    return *found;
}

}  // namespace

void describe(Schema& schema, AttentionOptions& o) {
    schema
        .choice("kind", o.kind, {{"full", AttentionKind::full}, {"moba", AttentionKind::moba}},
                "attention of the layers that are not in full_layers")
        .defines_model();
    schema
        .choice(
            "selection", o.selection, selection_names(),
            "under moba, what selects a query's top_k - 1 past blocks: gate by the dot product with their "
            "centroid, nearest the ones before, sink_nearest block 0 of the document and the top_k - 2 ones before "
            "(top_k of at least 2), random any; only the gate reads force_previous, force_first and shared_selection")
        .defines_model();
    describe(schema, o.moba);
    schema
        .section("full_layers", o.full_layers, "layers with full attention under moba: a list, or {last: n}",
                 &o.full_layers.layers)
        .defines_model();
    schema.list("schedule", o.schedule, "switches of kind during the run; the parameters are the same either way")
        .defines_model();
}

std::vector<std::string> problems(AttentionOptions const& o, ModelOptions const& model) {
    std::vector<std::string> found;
    if (o.full_layers.last > model.num_hidden_layers)
        found.push_back(fmt::format("attention.full_layers.last = {} exceeds model.num_hidden_layers = {}",
                                    o.full_layers.last, model.num_hidden_layers));
    for (int64_t layer : o.full_layers.layers)
        if (layer < 0 || layer >= model.num_hidden_layers)
            found.push_back(fmt::format("attention.full_layers names layer {}, but model.num_hidden_layers = {}", layer,
                                        model.num_hidden_layers));
    for (size_t i = 1; i < o.schedule.size(); ++i)
        if (o.schedule[i].step <= o.schedule[i - 1].step)
            found.push_back(fmt::format("attention.schedule: step {} comes after step {}; steps must increase",
                                        o.schedule[i].step, o.schedule[i - 1].step));
    if (o.selection == MobaOptions::kName && o.moba.force_first && o.moba.top_k < MobaOptions::kLeastForced)
        found.push_back(fmt::format(
            "attention.top_k = {}, but attention.force_first needs at least {}; with 2 it would be selection: {}",
            o.moba.top_k, MobaOptions::kLeastForced, SinkNearestBlocks::kName));
    each_rule([&]<class Rule>(Type<Rule>) {
        if constexpr (requires { Rule::kLeastTopK; })
            if (o.selection == Rule::kName && o.moba.top_k < Rule::kLeastTopK)
                found.push_back(fmt::format("attention.top_k = {}, but attention.selection: {} needs at least {}",
                                            o.moba.top_k, o.selection, Rule::kLeastTopK));
    });
    return found;
}

AttentionOptions attention_at(AttentionOptions options, int64_t step) {
    for (AttentionSwitch const& change : options.schedule)
        if (change.step <= step) options.kind = change.kind;
    options.schedule.clear();
    return options;
}

std::vector<Selection> layer_selections(AttentionOptions const& o, int64_t layers, int64_t step, uint64_t seed) {
    std::vector<Selection> selections(static_cast<size_t>(layers), FullAttention{});
    if (attention_at(o, step).kind == AttentionKind::full) return selections;
    for (int64_t layer = 0; layer < layers - o.full_layers.last; ++layer)
        if (std::ranges::find(o.full_layers.layers, layer) == o.full_layers.layers.end())
            selections[static_cast<size_t>(layer)] = sparse_selection(o, layer, seed);
    return selections;
}

std::optional<int64_t> next_moba_step(AttentionOptions const& o, int64_t step) {
    if (attention_at(o, step).kind == AttentionKind::moba) return step;
    for (AttentionSwitch const& change : o.schedule)
        if (change.step > step && change.kind == AttentionKind::moba) return change.step;
    return std::nullopt;
}

std::optional<std::string> full_attention_warning(AttentionOptions const& o, double sparse_pairs, double causal_pairs) {
    if (sparse_pairs < causal_pairs) return std::nullopt;
    if (causal_pairs == 0)
        return "MoBA has no layer: attention.full_layers names all of them. Name fewer, or set attention.kind: full";
    return fmt::format(
        "MoBA attends every causal key, as full attention does: no document is longer than attention.block_size ({}) "
        "times attention.top_k ({}) = {} tokens. Choose smaller ones, or longer documents",
        o.moba.block_size, o.moba.top_k, o.moba.block_size * o.moba.top_k);
}

}  // namespace perigee
