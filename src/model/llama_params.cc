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
}

/// This rank's values of one tensor, by index in the global tensor.
template <class Real>
std::vector<Real> initial_values(ParamSpec const& spec, Shard const& shard, uint64_t seed) {
    auto const constant = static_cast<Real>(spec.init == Init::ones ? 1 : 0);
    std::vector<Real> values(static_cast<size_t>(shard.flat_count), constant);
    if (spec.init != Init::normal) return values;
    Philox const random(seed, Purpose::init, hash_name(spec.name));
    for (Shard::Run const& run : shard.runs())
        for (int64_t i = 0; i < run.count; ++i)
            values[static_cast<size_t>(run.local + i)] =
                static_cast<Real>(spec.stddev * random.normal(static_cast<uint64_t>(run.global + i)));
    return values;
}

}  // namespace

std::vector<ParamSpec> llama_params(ModelOptions const& o) {
    std::vector<ParamSpec> params;
    params.push_back(weight("model.embed_tokens.weight", o.vocab_size, o.hidden_size, Cut::rows, o.initializer_range));
    for (int64_t layer = 0; layer < o.num_hidden_layers; ++layer) add_block(params, o, layer);
    params.push_back(norm("model.norm.weight", o.hidden_size));
    if (!o.tie_word_embeddings)
        params.push_back(weight("lm_head.weight", o.vocab_size, o.hidden_size, Cut::rows, o.initializer_range));
    return params;
}

void initialise(Ops& ops, ParamLayout const& layout, TensorView weights, uint64_t seed) {
    for (ParamLayout::Entry const& entry : layout.entries()) {
        TensorView const tensor = layout.view(weights, entry.spec.name);
        if (tensor.dtype == DType::f64) {
            ops.upload(tensor, initial_values<double>(entry.spec, entry.shard, seed).data());
            continue;
        }
        std::vector<float> const values = initial_values<float>(entry.spec, entry.shard, seed);
        if (tensor.dtype == DType::bf16) {
            std::vector<bf16> rounded(values.size());
            for (size_t i = 0; i < values.size(); ++i) rounded[i] = to_bf16(values[i]);
            ops.upload(tensor, rounded.data());
        } else {
            PERIGEE_CHECK(tensor.dtype == DType::f32, "weights in {}", to_string(tensor.dtype));
            ops.upload(tensor, values.data());
        }
    }
}

}  // namespace perigee
