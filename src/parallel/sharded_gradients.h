// The gradients of a rank, as `parallel.shard` says: whole, summed over the ranks in the last micro-batch of a step, or
// this rank's shares alone, to which each micro-batch scatters what it has computed of a unit. Sums run on a lane of
// their own, beside the computation of earlier units.
#pragma once

#include <vector>

#include "ops/ops.h"
#include "parallel/buckets.h"
#include "parallel/unit_slots.h"
#include "parallel/units.h"

namespace perigee {

class ShardedGradients final : public GradientUnits {
  public:
    /// All arguments outlive this. Memory is of the operations' main_dtype().
    ShardedGradients(ParamLayout const& layout, Sharding const& sharding, Mesh const& mesh, Ops& ops);

    /// The next pass is the first, or the last, of a step.
    void begin_pass(bool first, bool last);
    TensorView begin(int unit) override;
    void done(int unit) override;
    bool fresh() const override { return sharded() || first_; }
    bool settled() const override;
    /// After the last pass: what is queued in the compute queue from now on finds the sums of all ranks in updated().
    /// The rest of a whole buffer holds nothing of use.
    void await();

    /// One part per range of ownership.updated.
    std::vector<FlatPart> updated() const;
    /// The flat buffer; Category::internal where gradients are sharded.
    TensorView flat() const;
    int64_t bytes() const;  ///< taken so far
    bool holds(void const* address) const;

  private:
    bool sharded() const { return sharding_->stage >= ShardStage::gradients; }
    /// Sums the unit, whose values of this rank lie in `values`, over the ranks.
    void reduce(int unit, TensorView values);
    /// This rank's share of a bucket in what it holds of it for good.
    TensorView share(int64_t bucket) const;

    /// The sum of a later micro-batch lies in its slot until it is added to those of the earlier ones.
    struct Sum {
        TensorView part, accumulated;
    };
    /// Adds the sums that lie in this memory.
    void add_sums(TensorView memory);

    ParamLayout const* layout_;
    Sharding const* sharding_;
    Mesh const* mesh_;
    Ops* ops_;
    Buffer memory_;
    TensorView held_;  ///< the flat buffer, or this rank's shares one after the other
    UnitSlots slots_;  ///< where gradients are sharded
    Pending latest_;   ///< of the sums that were begun: the lane keeps their order
    std::vector<Sum> sums_;
    bool first_ = true, last_ = true;
};

}  // namespace perigee
