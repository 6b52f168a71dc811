// Scratch memory of decoding, besides the cache, in fp32 elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace perigee::decode {

constexpr int kSplitKeys = 128;  ///< keys per split; a split never crosses a block boundary

/// Upper bound on splits, if a head attends at most `blocks` blocks of `block_size` tokens.
constexpr int64_t most_splits(int64_t blocks, int64_t block_size) {
    return blocks * ((block_size + kSplitKeys - 1) / kSplitKeys);
}
/// Partial results [S, H, splits, K + 1], and a split count for each sequence and key/value head.
constexpr size_t attend_floats(int64_t sequences, int64_t heads, int64_t head_dim, int64_t splits) {
    return static_cast<size_t>(sequences * heads) * static_cast<size_t>(splits * (head_dim + 1) + 1);
}
/// Scores [S, H, blocks].
constexpr size_t select_floats(int64_t sequences, int64_t heads, int64_t blocks) {
    return static_cast<size_t>(sequences * heads * blocks);
}

}  // namespace perigee::decode
