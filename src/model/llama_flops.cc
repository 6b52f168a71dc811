#include <algorithm>

#include "model/llama.h"

namespace perigee {

namespace {

/// Query-key pairs that one head attends, and query-block pairs it scores, in a document of this length.
struct Pairs {
    double attended = 0;
    double scored = 0;
};

Pairs full_pairs(int64_t length) {
    return {.attended = 0.5 * static_cast<double>(length) * static_cast<double>(length + 1)};
}

Pairs moba_pairs(int64_t length, MobaOptions const& moba) {
    Pairs pairs;
    for (int64_t block = 0; block < moba_blocks(length, moba.block_size); ++block) {
        int64_t const begin = block * moba.block_size;
        auto const queries = static_cast<double>(std::min(length - begin, moba.block_size));
        auto const chosen = static_cast<double>(std::min(block, moba.top_k - 1) * moba.block_size);
        pairs.attended += queries * (queries + 1) / 2 + queries * chosen;
        pairs.scored += queries * static_cast<double>(block);
    }
    return pairs;
}

}  // namespace

ForwardFlops forward_flops(ModelOptions const& model, MobaOptions const& moba, std::span<AttentionKind const> kinds,
                           std::span<int32_t const> cu_seqlens) {
    int64_t const D = model.hidden_size, K = model.head_size(), H = model.num_attention_heads, G = model.kv_heads();
    int64_t const per_layer = D * (H + 2 * G) * K + H * K * D + 3 * D * model.intermediate_size;
    int64_t const weights = model.num_hidden_layers * per_layer + model.vocab_size * D;
    int64_t const choosers = moba.selection == MobaSelection::per_group ? G : H;
    Pairs full, sparse;
    for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
        int64_t const length = cu_seqlens[i + 1] - cu_seqlens[i];
        full.attended += full_pairs(length).attended;
        Pairs const pairs = moba_pairs(length, moba);
        sparse.attended += pairs.attended;
        sparse.scored += pairs.scored;
    }
    ForwardFlops flops;
    flops.linear = 2.0 * static_cast<double>(weights) * (cu_seqlens.empty() ? 0 : cu_seqlens.back());
    for (AttentionKind kind : kinds) {
        Pairs const& pairs = kind == AttentionKind::moba ? sparse : full;
        flops.attention += 4.0 * static_cast<double>(K * H) * pairs.attended;
        flops.gate += 2.0 * static_cast<double>(K * choosers) * pairs.scored;
    }
    return flops;
}

}  // namespace perigee
