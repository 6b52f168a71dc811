// MoBA's gate: which blocks of the past each query attends. Rules: docs/numerics.md.
#pragma once

#include "ops/host/moba_routes.h"
#include "ops/ops.h"

namespace perigee::host {

/// Writes all of `args.chosen_THS`, S > 0.
template <class Real>
void choose_blocks(SelectBlocks const& args, MobaOptions const& gate, BlockGrid const& grid);

}  // namespace perigee::host
