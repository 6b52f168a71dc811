// The classifier and its loss, in chunks of tokens: the logits of the whole batch never exist at once.
#pragma once

#include "ops/ops.h"
#include "tensor/arena.h"
#include "tensor/batch.h"

namespace perigee {

/// What the loss needs for its gradient; empty views where only the loss is wanted.
struct ClassifierGradient {
    TensorView dx_TD;
    TensorView dw_accumulated_VD;
    double scale = 1;
};

/// Sum over the batch of weight * nll of softmax(x W^T), added in fp64 in order of tokens. With `gradient`, also the
/// gradient of scale * that sum. Chunks whose weights are all zero cost nothing.
double classifier_loss(Ops& ops, Arena& arena, ConstView x_TD, ConstView w_VD, Batch const& batch,
                       ClassifierGradient const& gradient);

}  // namespace perigee
