// What the repetition penalty falls on, beside the logits: a bit for each id of some texts.
#pragma once

#include <vector>

#include "eval/sampling.h"
#include "ops/ops.h"

namespace perigee {

/// Takes memory when a text has a penalty. Ids that are drawn there become part of it there.
class SeenIds {
  public:
    SeenIds(Ops& ops, int64_t texts) : ops_(&ops), is_there_(static_cast<size_t>(texts)) {}

    /// As in SampleTokens, of all texts, with what this one's sampler has seen. All samplers allow as many ids.
    TensorView with(int64_t text, Sampler const& sampler);
    /// The sampler of the text is another, or has seen more than was drawn there.
    void forget(int64_t text) { is_there_[static_cast<size_t>(text)] = false; }

  private:
    Ops* ops_;
    std::vector<bool> is_there_;  ///< by text
    Buffer bits_;
};

}  // namespace perigee
