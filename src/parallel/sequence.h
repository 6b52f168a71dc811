// Sequence parallelism: between the matrix products that tensor parallelism cuts, each tp rank holds T / tp tokens of
// the stream. A product whose columns are cut reads all tokens, gathered; the partial sums of one whose rows are cut
// are added up as they are handed back in parts (Korthikanti et al. 2022). With one rank, part and whole are the same
// memory and nothing is copied.
#pragma once

#include "comm/comm.h"
#include "ops/ops.h"
#include "parallel/param_spec.h"
#include "tensor/tensor.h"

namespace perigee {

class SequenceParallel {
  public:
    /// `whole_TD` is memory for all tokens, reused by every call; it may be empty where `tp` has one rank. Parts may
    /// also be of fewer tokens, as many on every rank.
    SequenceParallel(Ops& ops, Comm& tp, TensorView whole_TD) : ops_(&ops), tp_(&tp), whole_TD_(whole_TD) {}

    /// All tokens of a tensor of which this rank holds `part_PD`; valid until the next call.
    TensorView gather(TensorView part_PD) const;
    /// Where a product puts its partial sums for all tokens, before add_up(part_PD).
    TensorView partial(TensorView part_PD) const { return alone() ? part_PD : whole(part_PD); }
    /// This rank's tokens of the sum, over the ranks, of what they left in partial(part_PD).
    void add_up(TensorView part_PD) const;

  private:
    bool alone() const { return tp_->size() == 1; }
    TensorView whole(TensorView part_PD) const { return whole_TD_.rows(0, part_PD[0] * tp_->size()); }

    Ops* ops_;
    Comm* tp_;
    TensorView whole_TD_;
};

/// Tensors that are not cut see only a part of the tokens, or of the heads, on each tp rank: adds their gradients in a
/// unit up over `tp`.
void add_up_uncut(ParamLayout const& layout, int unit, TensorView grads, Ops& ops, Comm& tp);

}  // namespace perigee
