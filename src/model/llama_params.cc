#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "base/philox.h"
#include "model/llama.h"

namespace perigee {

namespace {

constexpr char const* kKeyConv = "self_attn.k_conv.weight";

ParamSpec weight(std::string name, int64_t rows, int64_t columns, Cut cut, double stddev) {
    return {.name = std::move(name), .shape = {rows, columns}, .cut = cut, .init = Init::normal, .stddev = stddev};
}
ParamSpec norm(std::string name, int64_t size) {
    return {.name = std::move(name), .shape = {size}, .init = Init::ones, .decay = false};
}
ParamSpec bias(std::string name, int64_t size) {
    return {.name = std::move(name), .shape = {size}, .cut = Cut::rows, .init = Init::zeros, .decay = false};
}

/// Layers that share one product.
constexpr std::array<char const*, 3> kQkv = {"q_proj", "k_proj", "v_proj"};
constexpr std::array<char const*, 2> kGateUp = {"gate_proj", "up_proj"};
constexpr std::array<char const*, 1> kO = {"o_proj"}, kDown = {"down_proj"};
constexpr std::array<std::span<char const* const>, 4> kLoraProducts = {kQkv, kO, kGateUp, kDown};

/// Whether two adjacent parameters belong to the same product.
bool are_one_product(std::string const& a, std::string const& b) {
    auto const in = [](std::span<char const* const> product, std::string const& name) {
        return std::ranges::any_of(
            product, [&](char const* layer) { return name.find(fmt::format(".{}.", layer)) != name.npos; });
    };
    bool const alike = a.substr(a.rfind('.')) == b.substr(b.rfind('.'));  // both weights, or both biases
    return alike && ((in(kQkv, a) && in(kQkv, b)) || (in(kGateUp, a) && in(kGateUp, b)));
}

/// Adds the adapters of one layer: for each product first its A matrices, then its B matrices, so the A matrices are
/// contiguous. A is initialised with PEFT's variance, B with zeros. A is split like the layer's columns, B like its
/// rows.
void add_adapters(std::vector<ParamSpec>& params, LoraOptions const& lora, int64_t first) {
    std::vector<ParamSpec> const hosts(params.begin() + first, params.end());
    for (std::span<char const* const> product : kLoraProducts) {
        for (bool const is_a : {true, false})
            for (char const* const target : product) {
                if (!lora.has(target)) continue;
                auto const host = std::ranges::find_if(hosts, [&](ParamSpec const& spec) {
                    return spec.name.ends_with(fmt::format("{}.weight", target));
                });
                int64_t const out = host->shape[0], in = host->shape[1];
                std::string const layer = host->name.substr(0, host->name.size() - std::string_view("weight").size());
                Cut const cut = is_a == (host->cut == Cut::columns) ? host->cut : Cut::whole;
                ParamSpec spec = is_a ? weight(layer + "lora_A.weight", lora.rank, in, cut,
                                               1 / std::sqrt(3.0 * static_cast<double>(in)))
                                      : weight(layer + "lora_B.weight", out, lora.rank, cut, 0);
                if (!is_a) spec.init = Init::zeros;
                params.push_back(std::move(spec));
            }
    }
}

/// Output projections start smaller, so that the stream's variance does not grow with depth (GPT-2).
void add_block(std::vector<ParamSpec>& params, ModelOptions const& o, int64_t layer) {
    auto const first = std::ssize(params);
    auto const name = [&](char const* part) { return fmt::format("model.layers.{}.{}", layer, part); };
    int64_t const D = o.hidden_size, F = o.intermediate_size, K = o.head_size();
    int64_t const query = o.num_attention_heads * K, key = o.kv_heads() * K;
    double const std_in = o.initializer_range;
    double const std_out = std_in / std::sqrt(2.0 * static_cast<double>(o.num_hidden_layers));
    params.push_back(norm(name("input_layernorm.weight"), D));
    params.push_back(weight(name("self_attn.q_proj.weight"), query, D, Cut::rows, std_in));
    params.push_back(weight(name("self_attn.k_proj.weight"), key, D, Cut::rows, std_in));
    params.push_back(weight(name("self_attn.v_proj.weight"), key, D, Cut::rows, std_in));
    if (o.qkv_bias) {
        params.push_back(bias(name("self_attn.q_proj.bias"), query));
        params.push_back(bias(name("self_attn.k_proj.bias"), key));
        params.push_back(bias(name("self_attn.v_proj.bias"), key));
    }
    if (o.qk_norm) {
        params.push_back(norm(name("self_attn.q_norm.weight"), K));
        params.push_back(norm(name("self_attn.k_norm.weight"), K));
    }
    if (o.key_conv > 0)
        params.push_back({.name = name(kKeyConv),
                          .shape = {key, o.key_conv},
                          .cut = Cut::rows,
                          .init = Init::zeros,
                          .decay = false});
    params.push_back(weight(name("self_attn.o_proj.weight"), D, query, Cut::columns, std_out));
    params.push_back(norm(name("post_attention_layernorm.weight"), D));
    params.push_back(weight(name("mlp.gate_proj.weight"), F, D, Cut::rows, std_in));
    params.push_back(weight(name("mlp.up_proj.weight"), F, D, Cut::rows, std_in));
    params.push_back(weight(name("mlp.down_proj.weight"), D, F, Cut::columns, std_out));
    if (o.lora.rank > 0) add_adapters(params, o.lora, first);
    for (auto it = params.begin() + first; it != params.end(); ++it) it->unit = block_unit(layer);
}

/// Elements [begin, begin + x.size()) of this rank's box of a tensor that starts as normal numbers.
void fill_normal(Ops& ops, ParamLayout::Entry const& entry, int64_t begin, TensorView x, uint64_t seed) {
    ops.fill_normal({.x = x,
                     .random = {seed, Purpose::init, hash_name(entry.spec.name)},
                     .stddev = entry.spec.stddev,
                     .part = entry.part(begin)});
}

void fill_constant(Ops& ops, TensorView x, float value) {
    std::vector<float> const values(static_cast<size_t>(x.size()), value);
    if (x.dtype == DType::f32) return ops.upload(x, values.data());
    if (x.dtype == DType::f64) return ops.upload(x, std::vector<double>(values.begin(), values.end()).data());
    std::vector<bf16> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), to_bf16);
    ops.upload(x, rounded.data());
}

}  // namespace

bool is_key_conv(std::string const& name) { return name.ends_with(kKeyConv); }

std::vector<ParamSpec> llama_params(ModelOptions const& o) {
    std::vector<ParamSpec> params;
    params.push_back(weight("model.embed_tokens.weight", o.vocab_size, o.hidden_size, Cut::rows, o.initializer_range));
    for (int64_t layer = 0; layer < o.num_hidden_layers; ++layer) add_block(params, o, layer);
    params.push_back(norm("model.norm.weight", o.hidden_size));
    params.back().unit = head_unit(o);
    if (!o.tie_word_embeddings) {
        params.push_back(weight("lm_head.weight", o.vocab_size, o.hidden_size, Cut::rows, o.initializer_range));
        params.back().unit = head_unit(o);
    }
    if (o.lora.rank > 0)
        for (ParamSpec& spec : params) spec.frozen = !is_adapter(spec.name);
    return params;
}

std::vector<ParamSpec> base_params(ModelOptions options) {
    options.lora.rank = 0, options.key_conv = 0;
    return llama_params(options);
}

bool is_adapter(std::string const& name) {
    return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

void freeze(std::vector<ParamSpec>& params, std::span<std::string const> patterns) {
    for (std::string const& pattern : patterns) {
        bool found = false;
        for (ParamSpec& spec : params)
            if (::fnmatch(pattern.c_str(), spec.name.c_str(), 0) == 0) spec.frozen = found = true;
        if (!found)
            fail(Category::config, "train.freeze: no parameter is named \"{}\", as \"{}\" is", pattern,
                 params.front().name);
    }
    for (size_t i = 1; i < params.size(); ++i)
        if (params[i].frozen != params[i - 1].frozen && are_one_product(params[i - 1].name, params[i].name))
            fail(Category::config, "train.freeze: `{}` and `{}` are one matrix: freeze both or none",
                 params[i - 1].name, params[i].name);
    if (std::ranges::all_of(params, &ParamSpec::frozen)) fail(Category::config, "train.freeze leaves nothing to train");
}

void initialise(Ops& ops, ParamLayout const& layout, std::vector<FlatPart> const& parts, uint64_t seed) {
    for (FlatPart const& part : parts) {
        for (ParamLayout::Entry const& entry : layout.entries()) {
            int64_t const begin = std::max(part.range.begin, entry.offset);
            int64_t const end = std::min(part.range.end, entry.offset + entry.local.size());
            if (begin >= end) continue;
            TensorView const x = part.values.rows(begin - part.range.begin, end - part.range.begin);
            if (entry.spec.init == Init::normal)
                fill_normal(ops, entry, begin - entry.offset, x, seed);
            else
                fill_constant(ops, x, entry.spec.init == Init::ones ? 1 : 0);
        }
    }
}

}  // namespace perigee
