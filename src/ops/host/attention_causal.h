// Full causal attention inside each of a list of segments: the documents themselves for full attention, the blocks of
// every document for the part of MoBA in which a query attends its own block.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace perigee::host {

/// Tokens [begin, end) of the pack.
struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
};

template <class Real>
void causal_forward(AttentionForward const& args, std::vector<Segment> const& segments);

/// Overwrites dq, dk and dv of all tokens of the segments. `delta_TH` is the sum of d_o * o over each head's row.
template <class Real>
void causal_backward(AttentionBackward const& args, std::vector<Segment> const& segments, Real const* delta_TH);

}  // namespace perigee::host
