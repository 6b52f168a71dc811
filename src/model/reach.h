// Where gradients can go. A token of sparse attention only learns from the tokens that attend it, so with loss on few
// tokens it matters how far their gradient spreads on its way down: through the residual stream of the same token, and
// through attention to every token it attends, by choice of block or inside its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace perigee {

/// Selected blocks, the local one left out, added up over tokens and query heads, and over tokens and groups of heads
/// that share keys: a block that several heads of a group select counts once.
struct GroupBlocks {
    int64_t of_heads = 0;
    int64_t of_groups = 0;
};

/// Which blocks each token of a pack attends, layer by layer.
class BlockChoices {
  public:
    /// `heads` query heads; `cu_seqlens` as in Batch.
    BlockChoices(std::span<int32_t const> cu_seqlens, int64_t block_size, int64_t heads);

    // Layers from the first to the last.
    void add_full_layer();
    /// `heads_TN`: how many heads chose block n of token t's document, its own block left out.
    void add_sparse_layer(std::vector<int32_t> heads_TN, GroupBlocks of_groups = {});

    int64_t tokens() const { return cu_seqlens_.back(); }  ///< T
    int64_t blocks() const { return blocks_; }             ///< N, of the longest document
    int64_t layers() const { return static_cast<int64_t>(heads_LTN_.size()); }
    GroupBlocks group_blocks(int64_t layer) const { return group_blocks_[static_cast<size_t>(layer)]; }
    bool is_full(int64_t layer) const { return heads_LTN_[static_cast<size_t>(layer)].empty(); }

    /// reached[layer][t]: 1 where loss on the tokens of weight > 0 sends gradient into the stream of token t as it
    /// enters this layer, so that the keys and values of this layer, and all below, learn from it. Softmax never gives
    /// an attended token exactly nothing, so this is what backward computes, but for rounding.
    std::vector<std::vector<uint8_t>> reached(std::span<float const> weights_T) const;

    /// How many of the blocks that hold `places` the heads of token `from` attend, and how many that would be if each
    /// head attended all. Places are tokens of the pack, in from's document and not after it.
    struct Share {
        int64_t chosen = 0;
        int64_t needed = 0;
    };
    Share attended(int64_t layer, int64_t from, std::span<int64_t const> places) const;

    /// Of a sparse layer: shares[row][column] is the share of causal (query, head, key block) triples in the cell whose
    /// head attends the block. Row i holds the queries of blocks [i c, (i + 1) c) of every document, column i those
    /// blocks as keys, with c = blocks_per_cell(most). At most `most` rows and columns.
    std::vector<std::vector<double>> map(int64_t layer, int64_t most) const;
    int64_t blocks_per_cell(int64_t most) const { return (blocks_ + most - 1) / most; }

  private:
    struct Document {
        int64_t begin, end;
    };
    void spread(int64_t layer, Document document, std::vector<uint8_t>& reached) const;

    std::vector<int32_t> cu_seqlens_;
    int64_t block_size_;
    int64_t heads_;
    int64_t blocks_ = 0;
    std::vector<std::vector<int32_t>> heads_LTN_;  ///< empty for a full layer
    std::vector<GroupBlocks> group_blocks_;        ///< of each layer
};

}  // namespace perigee
