// All weights of a model on a rank. Trained and frozen weights have separate layouts and shardings. Code that gathers,
// updates and stores trained weights does not see the frozen ones.
#pragma once

#include <optional>

#include "parallel/sharded_weights.h"

namespace perigee {

class ModelWeights final : public WeightUnits {
  public:
    /// Layouts and shardings must outlive this. `frozen` and `frozen_sharding` are both null if nothing is frozen.
    ModelWeights(ParamLayout const& trained, Sharding const& sharding, ParamLayout const* frozen,
                 Sharding const* frozen_sharding, Mesh const& mesh, Ops& ops)
        : layout_(&trained), trained_(trained, sharding, mesh, ops) {
        if (frozen != nullptr) frozen_.emplace(*frozen, *frozen_sharding, mesh, ops);
    }

    TensorView need(int unit, int next) override {
        if (frozen_) frozen_unit_ = frozen_->need(unit, next);
        return trained_.need(unit, next);
    }
    TensorView frozen() override { return frozen_unit_; }
    void release(int unit) override {
        if (frozen_) frozen_->release(unit);
        trained_.release(unit);
    }
    bool settled() const override { return trained_.settled() && (!frozen_ || frozen_->settled()); }
    /// Joins the gathers of a forward pass, for a rank without tokens to compute.
    void pass_without_tokens() {
        for (int unit = 0; unit < layout_->units(); ++unit) {
            need(unit, unit + 1 < layout_->units() ? unit + 1 : -1);
            release(unit);
        }
    }

    ShardedWeights& trained() { return trained_; }
    ShardedWeights const& trained() const { return trained_; }
    ShardedWeights* frozen_part() { return frozen_ ? &*frozen_ : nullptr; }
    int64_t bytes() const { return trained_.bytes() + (frozen_ ? frozen_->bytes() : 0); }  ///< allocated so far
    bool holds(void const* address) const { return trained_.holds(address) || (frozen_ && frozen_->holds(address)); }

  private:
    ParamLayout const* layout_;
    ShardedWeights trained_;
    std::optional<ShardedWeights> frozen_;
    TensorView frozen_unit_;  ///< of the latest need()
};

}  // namespace perigee
