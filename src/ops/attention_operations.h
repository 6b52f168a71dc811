// The operations of attention over a pack. Part of the list in operations.h, whose conventions hold here. Semantics:
// docs/numerics.md.
#pragma once

#include <cstdint>
#include <span>

#include "ops/attended.h"

namespace perigee {

/// Causal softmax attention inside each document; query heads [g H/G, (g+1) H/G) share key/value head g.
/// `cu_seqlens` (host memory) as in Batch; empty documents are allowed. lse is the natural log-sum-exp of the scaled
/// scores.
/// The borders and the keys cover all T tokens of a pack, the queries a range of them: the rows of q and of everything
/// shaped like q are the tokens [query_begin, query_begin + rows).
struct AttentionForward {
    static constexpr char const* kName = "attention_forward";
    TensorView o_THK;
    TensorView lse_TH;
    ConstView q_THK;
    ConstView k_TGK;
    ConstView v_TGK;
    std::span<int32_t const> cu_seqlens;
    double scale = 0;  ///< of the scores: positive, or refused
    Attended attended = FullAttention{};
    int64_t query_begin = 0;
};
/// dk and dv are what these queries contribute, for all T tokens.
struct AttentionBackward {
    static constexpr char const* kName = "attention_backward";
    TensorView dq_THK;
    TensorView dk_TGK;
    TensorView dv_TGK;
    ConstView do_THK;
    ConstView q_THK;
    ConstView k_TGK;
    ConstView v_TGK;
    ConstView o_THK;
    ConstView lse_TH;
    std::span<int32_t const> cu_seqlens;
    double scale = 0;                     ///< of the scores: positive, or refused
    Attended attended = FullAttention{};  ///< with the routing that the forward left; without, it is made again
    int64_t query_begin = 0;
    bool add_to_dkv = false;  ///< dk and dv += instead of =
};

/// The mean of each of N runs of block_size keys, k [N block_size, G, K], pooled and rounded as the gate does it.
struct PoolKeys {
    static constexpr char const* kName = "pool_keys";
    TensorView means_NGK;
    ConstView k_TGK;
};

/// The blocks each query attends besides its local one: chosen [T, H, S] int32 with S = top_k - 1, as block indices
/// inside the document in ascending order, unused slots -1 at the end. The gate's rules: docs/numerics.md.
struct SelectBlocks {
    static constexpr char const* kName = "select_blocks";
    TensorView chosen_THS;
    ConstView q_THK;
    ConstView k_TGK;
    std::span<int32_t const> cu_seqlens;
    Selection selection;      ///< not full attention
    int64_t query_begin = 0;  ///< as in AttentionForward
    int64_t first_head = 0;   ///< number of the first query head here among all of the model
    /// From PoolKeys for all of the pack, where its blocks are runs of block_size tokens: of k then only the shape
    /// counts.
    ConstView means_NGK = {};
};

}  // namespace perigee
