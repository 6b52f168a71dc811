// Which blocks a pack has, and for each block the queries that chose it: the choice [T, H, S] turned around.
#pragma once

#include <span>
#include <vector>

#include "ops/host/segments.h"
#include "tensor/tensor.h"

namespace perigee::host {

/// The blocks of all documents in order; those of document d are [first[d], first[d + 1]). A document's last block may
/// be short, an empty document has none.
struct BlockGrid {
    BlockGrid(std::span<int32_t const> cu_seqlens, int64_t block_size);

    int64_t block_size;
    std::vector<Segment> blocks;
    std::vector<int64_t> first;
};

/// A place in the choice: row `token`, query head `head`, `slot` in [0, S).
struct Route {
    int64_t token = 0;
    int64_t head = 0;
    int64_t slot = 0;
};

class Routes {
  public:
    /// The rows of the choice belong to the tokens `queries`. Throws Category::internal unless every choice is
    /// ascending, wholly in the query's past, and padded with -1.
    Routes(ConstView chosen_THS, Segment queries, int64_t kv_heads, std::span<int32_t const> cu_seqlens,
           BlockGrid const& grid);

    int64_t slots() const { return slots_; }  ///< S
    /// The number of queries of key/value head `kv_head` that chose `block` (an index into the grid).
    int64_t count(int64_t kv_head, int64_t block) const { return offset(kv_head, block + 1) - offset(kv_head, block); }
    /// The i-th of them, in order of tokens, then heads.
    Route at(int64_t kv_head, int64_t block, int64_t i) const {
        int64_t const place = places_[offset(kv_head, block) + i];
        return {place / slots_ / heads_, place / slots_ % heads_, place % slots_};
    }

  private:
    int64_t offset(int64_t kv_head, int64_t block) const { return offsets_[kv_head * blocks_ + block]; }

    int64_t heads_;                 ///< H
    int64_t slots_;                 ///< S
    int64_t blocks_;                ///< of the grid
    std::vector<int64_t> offsets_;  ///< [G * blocks + 1] into places_
    std::vector<int64_t> places_;   ///< indices into the choice, grouped by key/value head and block
};

}  // namespace perigee::host
