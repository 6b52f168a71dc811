// The slow and obvious fp64 reference of MoBA and of full causal attention, against which every implementation is
// checked. Attention takes the choice of blocks as an input, so that choosing and attending are judged apart.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/moba/moba.h"

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

/// One softmax over the keys u <= t of the query's own block and all keys of the blocks in `chosen` [T, H, S] (indices
/// inside the document, -1 for none). It attends what it is told to attend, even a block of the future.
ReferenceResult reference_moba(ReferenceProblem const& problem, int64_t block_size, std::vector<int32_t> const& chosen);

/// Full causal attention: MoBA with one block as long as the longest document.
ReferenceResult reference_attention(ReferenceProblem const& problem);

/// How a centroid is kept: fp64 throughout, or summed in fp32 and left there or rounded to bf16.
enum class CentroidRounding { none, f32, bf16 };

/// chosen: [T, H, S] with S = top_k - 1, ascending, -1 at the end. gap: [T, H], the score of the last chosen block less
/// that of the best one left out, over the largest sum of |q_i c_i| of a candidate; infinite where nothing was left
/// out. An implementation that scores in fp32 may differ where the gap is around 1e-6.
struct ReferenceRouting {
    std::vector<int32_t> chosen;
    std::vector<double> gap;
};
ReferenceRouting reference_routing(ReferenceProblem const& problem, MobaOptions const& options,
                                   CentroidRounding rounding);

}  // namespace perigee
