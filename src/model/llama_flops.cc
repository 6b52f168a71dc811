#include <algorithm>

#include "model/llama.h"

namespace perigee {

namespace {

/// Query-key pairs that one head attends, and query-block pairs that a gate scores, in a document of this length.
struct Pairs {
    double attended = 0;
    double scored = 0;
};

Pairs full_pairs(int64_t length) {
    return {.attended = 0.5 * static_cast<double>(length) * static_cast<double>(length + 1)};
}

/// In closed form: a document may have as many blocks as tokens.
Pairs sparse_pairs(int64_t length, BlockBudget const& budget) {
    auto const B = static_cast<double>(budget.block_size);
    auto const whole = static_cast<double>(length / budget.block_size);  // blocks
    auto const rest = static_cast<double>(length % budget.block_size);   // queries of the last, shorter one
    auto const most = static_cast<double>(budget.slots());               // chosen past blocks
    // Blocks 0 to most - 1 have fewer past blocks than may be chosen.
    double const few = std::min(whole, most);
    double const chosen = few * (few - 1) / 2 + (whole - few) * most;  // over the whole blocks
    Pairs pairs;
    pairs.attended = whole * B * (B + 1) / 2 + B * B * chosen;
    pairs.attended += rest * (rest + 1) / 2 + rest * B * std::min(whole, most);
    pairs.scored = B * whole * (whole - 1) / 2 + rest * whole;
    return pairs;
}

/// Of one layer.
Pairs pairs_of(std::optional<BlockBudget> const& budget, std::span<int32_t const> cu_seqlens) {
    Pairs sum;
    for (size_t i = 1; i < cu_seqlens.size(); ++i) {
        int64_t const length = cu_seqlens[i] - cu_seqlens[i - 1];
        Pairs const pairs = budget ? sparse_pairs(length, *budget) : full_pairs(length);
        sum.attended += pairs.attended;
        sum.scored += pairs.scored;
    }
    return sum;
}

int64_t adapter_weights_per_layer(ModelOptions const& model) {
    if (model.lora.rank == 0) return 0;
    int64_t elements = 0;
    for (ParamSpec const& spec : llama_params(model))
        if (spec.unit == block_unit(0) && is_adapter(spec.name)) elements += spec.shape.size();
    return elements;
}

}  // namespace

ForwardFlops& ForwardFlops::operator+=(ForwardFlops const& more) {
    linear += more.linear;
    attention += more.attention;
    linear_left_out += more.linear_left_out;
    attention_left_out += more.attention_left_out;
    gate += more.gate;
    sparse_pairs += more.sparse_pairs;
    causal_pairs += more.causal_pairs;
    return *this;
}

Untrained untrained(std::span<ParamSpec const> params, ModelOptions const& model) {
    Untrained result;
    int first = head_unit(model);
    for (ParamSpec const& spec : params) {
        if (!spec.frozen) first = std::min(first, spec.unit);
        bool const is_product = spec.unit != kEmbeddingUnit || model.tie_word_embeddings;
        if (!spec.frozen || spec.shape.rank() != 2 || !is_product) continue;
        result.elements += spec.shape.size();
        if (spec.unit == kEmbeddingUnit || spec.unit == head_unit(model)) result.classifier = true;
    }
    result.layers = std::max(first - block_unit(0), 0);
    return result;
}

void leave_out_classifier(ForwardFlops& flops, ModelOptions const& model, int64_t tokens, Untrained const& untrained) {
    double const classifier =
        2.0 * static_cast<double>(tokens) * static_cast<double>(model.vocab_size * model.hidden_size);
    flops.linear -= classifier;
    if (untrained.classifier) flops.linear_left_out -= classifier;
}

ForwardFlops forward_flops(ModelOptions const& model, std::span<Selection const> selections,
                           std::span<int32_t const> cu_seqlens, Untrained const& untrained) {
    int64_t const K = model.head_size(), H = model.num_attention_heads, G = model.kv_heads();
    int64_t const of_layer = weights_per_layer(model) + adapter_weights_per_layer(model) + G * K * model.key_conv;
    int64_t const weights = model.num_hidden_layers * of_layer + model.vocab_size * model.hidden_size;
    double const per_weight = 2.0 * (cu_seqlens.empty() ? 0 : cu_seqlens.back());
    ForwardFlops flops;
    flops.linear = per_weight * static_cast<double>(weights);
    flops.linear_left_out = per_weight * static_cast<double>(untrained.elements + untrained.layers * of_layer);
    Pairs const full = pairs_of(std::nullopt, cu_seqlens);
    std::optional<BlockBudget> known;  // layers share their budget as a rule
    Pairs sparse;
    for (size_t layer = 0; layer < selections.size(); ++layer) {
        Selection const& selection = selections[layer];
        auto const budget = budget_of(selection);
        if (budget && budget != known) sparse = pairs_of(known = budget, cu_seqlens);
        Pairs const& pairs = budget ? sparse : full;
        if (budget) {
            flops.sparse_pairs += sparse.attended;
            flops.causal_pairs += full.attended;
        }
        double const attention = 4.0 * static_cast<double>(K * H) * pairs.attended;
        flops.attention += attention;
        if (static_cast<int64_t>(layer) < untrained.layers) flops.attention_left_out += 2 * attention;
        if (auto const* const gate = std::get_if<MobaOptions>(&selection)) {
            int64_t const choosers = gate->selection == MobaSelection::per_group ? G : H;
            flops.gate += 2.0 * static_cast<double>(K * choosers) * pairs.scored;
        }
    }
    return flops;
}

}  // namespace perigee
