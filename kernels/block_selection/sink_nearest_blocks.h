// The document's first block, the attention sink, and the k - 2 blocks before the local one. Source: Xiao et al.,
// "Efficient streaming language models with attention sinks", arXiv 2309.17453, there by tokens.
#pragma once

#include "kernels/block_selection/by_position.h"

namespace perigee {

struct SinkNearestBlocks {
    static constexpr char const* kName = "sink_nearest";
    static constexpr int64_t kLeastTopK = 2;  ///< the local block and the sink; then no slot is left for a nearest one
    int64_t block_size = 512;
    int64_t top_k = 3;

    /// Writes top_k - 1 ascending indices below query.block, which is at least top_k.
    constexpr void choose(QueryPlace const& query, int32_t* slots_S) const {
        int64_t const slots = top_k - 1;
        for (int64_t s = 0; s < slots; ++s) slots_S[s] = s == 0 ? 0 : static_cast<int32_t>(query.block - slots + s);
    }
};

}  // namespace perigee
