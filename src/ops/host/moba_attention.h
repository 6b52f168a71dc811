// The part of MoBA in which queries attend chosen blocks of the past, added to what causal attention inside the own
// block has computed. Work goes block by block: the rows that chose a block are gathered, so that every product is
// dense, and each route has a partial result of its own, so that no sum depends on the order of threads. Partial
// results take T H / G S K numbers; one key/value head is worked on at a time.
#pragma once

#include "ops/host/moba_routes.h"
#include "ops/ops.h"

namespace perigee::host {

/// Merges the chosen blocks into o and lse of `args`, by log-sum-exp.
template <class Real>
void routed_forward(AttentionForward const& args, BlockGrid const& grid, Routes const& routes);

/// Adds to dq, dk and dv of `args`; `delta_TH` as in causal_backward.
template <class Real>
void routed_backward(AttentionBackward const& args, BlockGrid const& grid, Routes const& routes, Real const* delta_TH);

}  // namespace perigee::host
