// Mixture of Block Attention: its options and the arithmetic of blocks, shared by every implementation.
// Source: Lu et al., "MoBA: Mixture of Block Attention for Long-Context LLMs", arXiv 2502.13189.
#pragma once

#include <cstdint>

namespace perigee {

/// One selection of blocks per query head, or one per group of query heads that share a key/value head (scored by the
/// sum of the group's queries).
enum class MobaSelection { per_head, per_group };

/// The gate: a query's blocks are the top-k past ones by the dot product with their centroid.
struct MobaOptions {
    static constexpr char const* kName = "gate";
    static constexpr int64_t kLeastForced = 3;  ///< smallest top_k with force_first: leaves the gate one slot
    int64_t block_size = 512;                   ///< B: keys per block
    int64_t top_k = 3;  ///< k: blocks a query attends, the local block included; k = 1 is block-local attention
    bool force_previous = false;  ///< the block before the local block is always among the k - 1
    bool force_first = false;     ///< block 0 of the document is always one of the k - 1; k >= kLeastForced
    MobaSelection selection = MobaSelection::per_head;
    bool operator==(MobaOptions const&) const = default;
};

/// Blocks of a document of `length` tokens: ceil(length / block_size).
constexpr int64_t moba_blocks(int64_t length, int64_t block_size) { return (length + block_size - 1) / block_size; }

/// With this few blocks of a document all are selected, by any rule: full causal attention.
constexpr bool moba_covers_all(int64_t length, int64_t block_size, int64_t top_k) {
    return moba_blocks(length, block_size) <= top_k;
}

}  // namespace perigee
