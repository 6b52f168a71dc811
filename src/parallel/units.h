// How a pass over the model finds weights and hands over gradients, unit by unit (ParamLayout), without knowing where
// they lie: whole on this rank, or gathered and scattered as the pass goes on (sharded_weights.h, sharded_gradients.h).
#pragma once

#include "parallel/param_spec.h"

namespace perigee {

class WeightUnits {
  public:
    virtual ~WeightUnits() = default;
    /// The unit's memory, laid out as in ParamLayout: what is queued in the compute queue until release(unit) finds its
    /// weights there. `next` is the unit that will be needed after it, or -1. Units may be needed several times; every
    /// rank of a mesh needs and releases the same ones in the same order.
    virtual TensorView need(int unit, int next) = 0;
    /// Memory of the frozen tensors of the unit passed to the last need(), in their own layout. Empty if there are
    /// none. Valid as long as the unit's memory.
    virtual TensorView frozen() { return {}; }
    virtual void release(int unit) = 0;
    /// Until weights change, need() queues nothing, and gives each unit the same memory every time.
    virtual bool settled() const = 0;
};

class GradientUnits {
  public:
    virtual ~GradientUnits() = default;
    /// The unit's memory, laid out as in ParamLayout, until done(unit). Every unit of a pass is begun and done once.
    virtual TensorView begin(int unit) = 0;
    /// This pass adds nothing more to it.
    virtual void done(int unit) = 0;
    /// The memory holds nothing yet: the pass overwrites it, as if it had been zeros.
    virtual bool fresh() const = 0;
    /// In this pass begin() and done() queue nothing, and each unit has the same memory every time.
    virtual bool settled() const = 0;
};

/// Weights that lie whole in one flat buffer.
class FlatWeights final : public WeightUnits {
  public:
    FlatWeights(ParamLayout const& layout, TensorView flat) : layout_(&layout), flat_(flat) {}
    TensorView need(int unit, int /*next*/) override {
        FlatRange const range = layout_->unit(unit);
        return flat_.rows(range.begin, range.end);
    }
    void release(int /*unit*/) override {}
    bool settled() const override { return true; }

  private:
    ParamLayout const* layout_;
    TensorView flat_;
};

/// Gradients of one rank, whole in one flat buffer.
class FlatGradients final : public GradientUnits {
  public:
    FlatGradients(ParamLayout const& layout, TensorView flat, bool fresh = false)
        : layout_(&layout), flat_(flat), fresh_(fresh) {}
    TensorView begin(int unit) override {
        FlatRange const range = layout_->unit(unit);
        return flat_.rows(range.begin, range.end);
    }
    void done(int /*unit*/) override {}
    bool fresh() const override { return fresh_; }
    bool settled() const override { return true; }

  private:
    ParamLayout const* layout_;
    TensorView flat_;
    bool fresh_;
};

}  // namespace perigee
