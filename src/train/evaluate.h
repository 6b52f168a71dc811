// Held-out loss, and how far the gradients of training spread.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "data/data_source.h"
#include "train/metrics.h"
#include "train/session.h"

namespace perigee {

/// Mean nll and share of right predictions per unit of loss weight over the first eval.samples validation samples,
/// shared out over the mesh. All ranks ask `goes_on` between micro-batches; nothing where all are told no. Collective.
/// Throws Category::data where no validation token carries loss.
std::optional<EvalReport> evaluate(
    Session& session, DataSource const& validation, int64_t step, std::span<Selection const> selections,
    std::function<bool()> const& goes_on = [] { return true; });

/// Warns where another chat template rendered the validation data than the training data of the checkpoint of `state`.
void warn_of_other_template(DataOptions const& data, RunState const& state, FileSystem& files);

/// Throws Category::data where evaluate() would. Reads samples up to the first token that carries loss. Collective.
void check_loss(Session& session, DataSource const& validation);

/// Per layer, over the eval.samples training samples from `first` on, shared out over the mesh: the share of tokens
/// that receive gradient, and of what the samples have to look up, the share of blocks that MoBA chose. Collective.
std::vector<LayerReach> measure_reach(Session& session, DataSource const& train, int64_t first,
                                      std::span<Selection const> selections);

}  // namespace perigee
