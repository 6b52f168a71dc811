// The model's weights on a rank, as `parallel.shard` says: whole, or this rank's shares alone, from which a unit is
// gathered before it is needed. Gathers run on a lane of their own, beside the computation.
#pragma once

#include <vector>

#include "ops/ops.h"
#include "parallel/buckets.h"
#include "parallel/unit_slots.h"
#include "parallel/units.h"

namespace perigee {

class ShardedWeights final : public WeightUnits {
  public:
    /// All arguments outlive this. Memory is of the operations' compute_dtype(), and zero at first.
    ShardedWeights(ParamLayout const& layout, Sharding const& sharding, Mesh const& mesh, Ops& ops);

    TensorView need(int unit, int next) override;
    void release(int unit) override;
    bool settled() const override;

    /// All that this rank holds for good: its shares, or everything. Who writes there waits for the device first where
    /// gathers may be under way.
    std::vector<FlatPart> parts() const;
    /// What the optimizer updates, one part per range of ownership.updated.
    std::vector<FlatPart> updated() const;
    /// Work in the compute queue has written this rank's shares of the unit: begins to collect the others', or does so
    /// when the unit is next needed.
    void changed(int unit);
    /// Work in the compute queue has written parts().
    void loaded();

    /// The flat buffer; Category::internal where weights are sharded.
    TensorView flat() const;
    int64_t bytes() const;  ///< taken so far
    bool holds(void const* address) const;

  private:
    bool sharded() const { return sharding_->stage == ShardStage::weights; }
    bool is_empty(int unit) const { return layout_->unit(unit).size() == 0; }
    /// Collects the shares of a unit from memory that holds them, in the order of the lane.
    Pending gather(int unit, TensorView to);
    void gather_into_slot(int unit);

    ParamLayout const* layout_;
    Sharding const* sharding_;
    Comm* comm_;
    Device* device_;
    Buffer memory_;
    TensorView held_;               ///< the flat buffer, or this rank's shares one after the other
    UnitSlots slots_;               ///< where weights are sharded
    std::vector<Pending> gathers_;  ///< begun, by unit, and not yet waited for
};

}  // namespace perigee
