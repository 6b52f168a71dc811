// Seen ids for the repetition penalty, on the device: one bit per id and text.
#pragma once

#include <vector>

#include "eval/sampling.h"
#include "ops/ops.h"

namespace perigee {

/// Allocates memory when a text first needs a penalty. The device marks the ids that it draws.
class SeenIds {
  public:
    SeenIds(Ops& ops, int64_t texts) : ops_(&ops), is_there_(static_cast<size_t>(texts)) {}

    /// The bits of all texts, as SampleTokens takes them, with those of `text` up to date with its sampler. All
    /// samplers must allow the same number of ids.
    TensorView with(int64_t text, Sampler const& sampler);
    /// Call when a text has another sampler, or its sampler has seen ids that the device did not draw.
    void forget(int64_t text) { is_there_[static_cast<size_t>(text)] = false; }

  private:
    Ops* ops_;
    std::vector<bool> is_there_;  ///< by text
    Buffer bits_;
};

}  // namespace perigee
