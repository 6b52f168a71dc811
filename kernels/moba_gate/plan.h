// The gate's kernels and scratch memory for a shape. Pure arithmetic without CUDA.
#pragma once

#include "kernels/block_sparse_attention/plan.h"
#include "kernels/moba_gate/options.h"

namespace perigee {

struct MobaGatePlan {
    BlockSparseShape shape;
    MobaOptions options;
    KernelArch arch = KernelArch::sm80;  ///< kernels that run
    int64_t blocks = 0;                  ///< upper bound over all documents
    ScratchRegion centroids = {};        ///< [blocks, G, K] in bf16
    ScratchRegion first = {}, block_table = {}, block_of = {};
    size_t scratch_bytes = 0;

    int64_t slots() const { return options.top_k - 1; }
};

/// The kernels that score blocks: those of shape.arch where they take the heads and options. Scores of the two kinds
/// may differ in the last bit, and where heads share a selection by 2^-17 of each number of the queries' sum.
KernelArch gate_arch(BlockSparseShape const& shape, MobaOptions const& options);

/// `shape` has the options' block_size and top_k. Throws Category::internal for a shape that attention_refusal refuses.
MobaGatePlan plan_moba_gate(BlockSparseShape const& shape, MobaOptions const& options);

}  // namespace perigee
