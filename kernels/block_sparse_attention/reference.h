// The fp64 reference of block-sparse and full causal attention, forward and backward. The selection is an input, so
// that selecting and attending are judged apart.
#pragma once

#include <cstdint>
#include <vector>

namespace perigee {

/// Packed documents as in AttentionForward: q and d_o are [T, H, K], k and v are [T, G, K], row-major.
struct ReferenceProblem {
    int64_t heads = 0;     ///< H
    int64_t kv_heads = 0;  ///< G, a divisor of H
    int64_t head_dim = 0;  ///< K
    double scale = 0;
    std::vector<int32_t> cu_seqlens = {0};
    std::vector<double> q = {}, k = {}, v = {}, d_o = {};

    int64_t tokens() const { return cu_seqlens.back(); }
};

/// o, dq: [T, H, K]; lse: [T, H]; dk, dv: [T, G, K].
struct ReferenceResult {
    std::vector<double> o, lse, dq, dk, dv;
};

/// One softmax over the keys u <= t of the query's local block and all keys of the blocks in `chosen` [T, H, S]
/// (indices inside the document, -1 for none). It attends what it is told to attend, even a block of the future.
ReferenceResult reference_moba(ReferenceProblem const& problem, int64_t block_size, std::vector<int32_t> const& chosen);

/// Full causal attention: MoBA with one block as long as the longest document.
ReferenceResult reference_attention(ReferenceProblem const& problem);

}  // namespace perigee
