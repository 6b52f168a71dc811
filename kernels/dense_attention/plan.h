// Scratch memory of dense attention. Pure arithmetic without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perigee {

struct DenseAttentionShape {
    int64_t tokens = 0;  ///< T
    int64_t documents = 0;
    int64_t heads = 0;                      ///< H
    int64_t kv_heads = 0;                   ///< G, a divisor of H
    int64_t head_dim = 0;                   ///< K
    int64_t window = 0;                     ///< keys that a query attends at most, its own included; 0: all before it
    bool deterministic = false;             ///< the backward repeats bitwise, as the forward always does
    int64_t sums_bytes = int64_t{1} << 30;  ///< of the backward's fp32 sums at a time, but one kv head's at least

    /// Of q, do and dq of a document and a group of heads of 128, from which on the backward takes one or two heads
    /// at a time.
    int64_t cached_bytes = int64_t{64} << 20;

    int64_t group() const { return heads / kv_heads; }
};

/// What the backward has in scratch memory, of the kv heads of a pass: bytes at which the parts begin.
struct DenseBackwardPlan {
    int64_t kv_tiles = 0;       ///< of a head, at most
    int64_t pass_kv_heads = 0;  ///< the last pass may have fewer
    /// Of a KV tile, one after another: pairs of query heads of its group, heads where their number is odd or 2, or 1,
    /// which takes them all. Parts keep the rows that thread blocks read at a time in the L2 cache.
    int64_t parts = 1;
    int64_t stats = 0, turns = 0, parts_done = 0, sums = 0, key_sums = 0, scratch_bytes = 0;

    explicit DenseBackwardPlan(DenseAttentionShape const& shape);
};

/// Bytes of scratch memory.
size_t dense_forward_scratch(DenseAttentionShape const& shape);
size_t dense_backward_scratch(DenseAttentionShape const& shape);

}  // namespace perigee
