#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "model/llama.h"

namespace perigee {

namespace {

ParamSpec weight(std::string name, int64_t rows, int64_t columns, Cut cut, double stddev) {
    return {.name = std::move(name), .shape = {rows, columns}, .cut = cut, .init = Init::normal, .stddev = stddev};
}
ParamSpec norm(std::string name, int64_t size) {
    return {.name = std::move(name), .shape = {size}, .init = Init::ones, .decay = false};
}
ParamSpec bias(std::string name, int64_t size) {
    return {.name = std::move(name), .shape = {size}, .cut = Cut::rows, .init = Init::zeros, .decay = false};
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
    params.push_back(weight(name("self_attn.o_proj.weight"), D, query, Cut::columns, std_out));
    params.push_back(norm(name("post_attention_layernorm.weight"), D));
    params.push_back(weight(name("mlp.gate_proj.weight"), F, D, Cut::rows, std_in));
    params.push_back(weight(name("mlp.up_proj.weight"), F, D, Cut::rows, std_in));
    params.push_back(weight(name("mlp.down_proj.weight"), D, F, Cut::columns, std_out));
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

std::vector<ParamSpec> llama_params(ModelOptions const& o) {
    std::vector<ParamSpec> params;
    params.push_back(weight("model.embed_tokens.weight", o.vocab_size, o.hidden_size, Cut::rows, o.initializer_range));
    for (int64_t layer = 0; layer < o.num_hidden_layers; ++layer) add_block(params, o, layer);
    params.push_back(norm("model.norm.weight", o.hidden_size));
    params.back().unit = head_unit(o);
    if (o.tie_word_embeddings) return params;
    params.push_back(weight("lm_head.weight", o.vocab_size, o.hidden_size, Cut::rows, o.initializer_range));
    params.back().unit = head_unit(o);
    return params;
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
