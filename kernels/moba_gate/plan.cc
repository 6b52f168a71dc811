#include "kernels/moba_gate/plan.h"

#include "base/error.h"

namespace perigee {

KernelArch gate_arch(BlockSparseShape const& s, MobaOptions const& options) {
    // The sm90 gate keeps a row's top-k in registers; where heads select alone, its tiles hold whole groups of them.
    bool const fits = options.selection == MobaSelection::per_group || s.group() <= 128;
    bool const takes = (s.head_dim == 64 || s.head_dim == 128) && s.slots() <= 15 && fits;
    return takes ? s.arch : KernelArch::sm80;
}

MobaGatePlan plan_moba_gate(BlockSparseShape const& s, MobaOptions const& options) {
    std::string const refusal = attention_refusal(s);
    PERIGEE_CHECK(refusal.empty(), "{}", refusal);
    PERIGEE_CHECK(s.block_size == options.block_size && s.top_k == options.top_k, "{} for a gate of B {} k {}",
                  to_string(s), options.block_size, options.top_k);
    MobaGatePlan plan{.shape = s, .options = options, .blocks = max_blocks(s)};
    plan.arch = gate_arch(s, options);
    ScratchLayout layout;
    plan.centroids = layout.take(plan.blocks * s.kv_heads * s.head_dim, 2);
    plan.first = layout.take(s.documents + 1, sizeof(int32_t));
    plan.block_table = layout.take(plan.blocks, 4 * sizeof(int32_t));
    plan.block_of = layout.take(s.tokens, sizeof(int32_t));
    plan.scratch_bytes = layout.end();
    return plan;
}

}  // namespace perigee
