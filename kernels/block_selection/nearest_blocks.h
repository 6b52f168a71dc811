// The k - 1 blocks before the local one: a sliding window of whole blocks.
#pragma once

#include "kernels/block_selection/by_position.h"

namespace perigee {

struct NearestBlocks {
    static constexpr char const* kName = "nearest";
    int64_t block_size = 512;
    int64_t top_k = 3;

    /// Writes top_k - 1 ascending indices below query.block, which is at least top_k.
    constexpr void choose(QueryPlace const& query, int32_t* slots_S) const {
        int64_t const slots = top_k - 1;
        for (int64_t s = 0; s < slots; ++s) slots_S[s] = static_cast<int32_t>(query.block - slots + s);
    }
};

}  // namespace perigee
