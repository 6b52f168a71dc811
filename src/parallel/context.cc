#include "parallel/context.h"

#include <algorithm>
#include <type_traits>

namespace perigee {

ContextModes resolve_context_modes(ContextMode wanted, MeshShape const& shape, int64_t kv_heads) {
    int64_t const heads = kv_heads / shape.tp;
    bool const fits = heads % shape.cp == 0;
    if (wanted == ContextMode::ulysses && !fits) {
        fail(Category::config,
             "parallel.context_mode is ulysses, but the {} key/value heads of a rank ({} / parallel.tensor = {}) are "
             "not a multiple of parallel.context = {}; allgather has no such limit",
             heads, kv_heads, shape.tp, shape.cp);
    }
    if (wanted != ContextMode::automatic) return {wanted, wanted};
    return {fits ? ContextMode::ulysses : ContextMode::allgather, ContextMode::allgather};
}

ContextModes modes_of_layers(ContextModes modes, std::span<Selection const> selections) {
    if (std::ranges::all_of(selections, is_full)) modes.sparse = modes.full;
    if (std::ranges::none_of(selections, is_full)) modes.full = modes.sparse;
    return modes;
}

ContextShard::ContextShard(int64_t pack_tokens, int ranks, int rank, bool zigzag)
    : pack_tokens_(pack_tokens), ranks_(ranks), rank_(rank), zigzag_(zigzag && ranks > 1) {
    PERIGEE_CHECK(0 <= rank && rank < ranks, "rank {} of {}", rank, ranks);
    int const parts = zigzag_ ? 2 * ranks : ranks;
    if (pack_tokens % parts != 0) {
        fail(Category::config,
             "a micro-batch of {} tokens does not divide into {} equal parts for parallel.context = {}", pack_tokens,
             parts, ranks);
    }
}

std::vector<TokenRange> ContextShard::ranges(int rank) const {
    if (!zigzag_) return {{rank * tokens(), (rank + 1) * tokens()}};
    int64_t const chunk = tokens() / 2, late = 2 * ranks_ - 1 - rank;
    return {{rank * chunk, (rank + 1) * chunk}, {late * chunk, (late + 1) * chunk}};
}

Batch shard_batch(Batch const& pack, ContextShard const& shard) {
    PERIGEE_CHECK(pack.tokens() == shard.pack_tokens(), "a pack of {} tokens for shards of {}", pack.tokens(),
                  shard.pack_tokens());
    auto const local = [&](auto const& all) {
        std::remove_cvref_t<decltype(all)> part;
        for (auto const [begin, end] : shard.ranges()) part.insert(part.end(), all.begin() + begin, all.begin() + end);
        return part;
    };
    return {.ids_T = local(pack.ids_T),
            .targets_T = local(pack.targets_T),
            .weights_T = local(pack.weights_T),
            .positions_T = local(pack.positions_T),
            .cu_seqlens = pack.cu_seqlens};
}

}  // namespace perigee
