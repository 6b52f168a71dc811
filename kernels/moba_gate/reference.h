// The fp64 reference of the gate, against which every implementation is checked.
#pragma once

#include "kernels/block_sparse_attention/reference.h"
#include "kernels/moba_gate/options.h"

namespace perigee {

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
