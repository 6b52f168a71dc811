// k - 1 past blocks, uniform without replacement. The numbers follow from seed, layer, head and position alone, so
// every layout and every packing selects the same blocks. Source: Floyd's algorithm, in Bentley, "Programming pearls: a
// sample of brilliance", CACM 30(9), 1987.
#pragma once

#include "base/philox.h"
#include "kernels/block_selection/by_position.h"

namespace perigee {

struct RandomBlocks {
    static constexpr char const* kName = "random";
    int64_t block_size = 512;
    int64_t top_k = 3;
    uint64_t seed = 0;
    int64_t layer = 0;

    /// Writes top_k - 1 ascending indices below query.block, which is at least top_k.
    constexpr void choose(QueryPlace const& query, int32_t* slots_S) const {
        Philox const random(seed, Purpose::block_selection, static_cast<uint64_t>(layer << 32 | query.head));
        int64_t const slots = top_k - 1, first = query.block - slots;
        for (int64_t s = 0; s < slots; ++s) {
            // One of the blocks [0, first + s]; where it is taken already, the last of them, which cannot be.
            auto const index = static_cast<uint64_t>(query.position << 16 | s);
            auto const drawn = static_cast<int32_t>(random.below(index, static_cast<uint64_t>(first + s + 1)));
            int64_t at = s;
            while (at > 0 && slots_S[at - 1] > drawn) --at;
            if (at > 0 && slots_S[at - 1] == drawn) {
                slots_S[s] = static_cast<int32_t>(first + s);
                continue;
            }
            for (int64_t i = s; i > at; --i) slots_S[i] = slots_S[i - 1];
            slots_S[at] = drawn;
        }
    }
};

}  // namespace perigee
