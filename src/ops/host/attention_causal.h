// Full causal attention inside each of a list of segments: the documents themselves for full attention, the blocks of
// every document for the part of MoBA in which a query attends its own block.
#pragma once

#include "ops/host/segments.h"
#include "ops/ops.h"

namespace perigee::host {

/// Writes o and lse of the queries of `args`, all of which lie in a segment.
template <class Real>
void causal_forward(AttentionForward const& args, std::vector<Segment> const& segments);

/// Overwrites dq and adds to dk and dv. `delta_TH` is the sum of d_o * o over each head's row.
template <class Real>
void causal_backward(AttentionBackward const& args, std::vector<Segment> const& segments, Real const* delta_TH);

}  // namespace perigee::host
