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

Pairs sparse_pairs(int64_t length, BlockBudget const& budget) {
    Pairs pairs;
    for (int64_t block = 0; block < moba_blocks(length, budget.block_size); ++block) {
        int64_t const begin = block * budget.block_size;
        auto const queries = static_cast<double>(std::min(length - begin, budget.block_size));
        auto const chosen = static_cast<double>(std::min(block, budget.slots()) * budget.block_size);
        pairs.attended += queries * (queries + 1) / 2 + queries * chosen;
        pairs.scored += queries * static_cast<double>(block);
    }
    return pairs;
}

/// Of one layer.
Pairs pairs_of(Selection const& selection, std::span<int32_t const> cu_seqlens) {
    auto const budget = budget_of(selection);
    Pairs sum;
    for (size_t i = 1; i < cu_seqlens.size(); ++i) {
        int64_t const length = cu_seqlens[i] - cu_seqlens[i - 1];
        Pairs const pairs = budget ? sparse_pairs(length, *budget) : full_pairs(length);
        sum.attended += pairs.attended;
        sum.scored += pairs.scored;
    }
    return sum;
}

}  // namespace

ForwardFlops forward_flops(ModelOptions const& model, std::span<Selection const> selections,
                           std::span<int32_t const> cu_seqlens) {
    int64_t const D = model.hidden_size, K = model.head_size(), H = model.num_attention_heads, G = model.kv_heads();
    int64_t const per_layer = D * (H + 2 * G) * K + H * K * D + 3 * D * model.intermediate_size;
    int64_t const weights = model.num_hidden_layers * per_layer + model.vocab_size * D;
    ForwardFlops flops;
    flops.linear = 2.0 * static_cast<double>(weights) * (cu_seqlens.empty() ? 0 : cu_seqlens.back());
    for (Selection const& selection : selections) {
        Pairs const pairs = pairs_of(selection, cu_seqlens);
        flops.attention += 4.0 * static_cast<double>(K * H) * pairs.attended;
        if (auto const* const gate = std::get_if<MobaOptions>(&selection)) {
            int64_t const choosers = gate->selection == MobaSelection::per_group ? G : H;
            flops.gate += 2.0 * static_cast<double>(K * choosers) * pairs.scored;
        }
    }
    return flops;
}

}  // namespace perigee
