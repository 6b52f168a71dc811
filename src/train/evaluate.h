// Held-out loss.
#pragma once

#include <span>

#include "data/data_source.h"
#include "train/metrics.h"
#include "train/session.h"

namespace perigee {

/// Mean nll per unit of loss weight over the first eval.samples validation samples, shared out over the mesh.
/// Collective. Throws Category::data where no validation token carries loss.
EvalReport evaluate(Session& session, DataSource const& validation, int64_t step, std::span<AttentionKind const> kinds);

}  // namespace perigee
