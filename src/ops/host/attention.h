// Causal attention over packed documents on the CPU, full and block-sparse, forward and backward. Full attention works
// in tiles with an online softmax (Dao, "FlashAttention-2", arXiv 2307.08691); block-sparse attention gathers, for
// every block of keys, the queries that chose it. Every product is an OpenBLAS call; results do not depend on the
// number of threads.
#pragma once

#include "ops/ops.h"

namespace perigee::host {

/// As in ops/ops.h, in Real = float or double; block-sparse where the arguments say so. Throws Category::internal on
/// wrong shapes, on borders that do not run from 0 to T, and on a chosen block that is not wholly in the query's past.
template <class Real>
void attention_forward(AttentionForward const& args);
template <class Real>
void attention_backward(AttentionBackward const& args);
template <class Real>
void select_blocks(SelectBlocks const& args);

}  // namespace perigee::host
