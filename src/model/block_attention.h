// A block's attention with the projections around it, from the norm's output to the branch.
#pragma once

#include "model/block.h"

namespace perigee {

/// Reads acts.normed_PD, leaves the output in pass.branch_PD. Unless it `attends`, restores what is missing beside what
/// the attention found.
void attention_forward(Pass const& pass, BlockTensors const& weights, BlockActivations const& acts,
                       Selection const& selection, bool attends);

/// temporary.dx_PD is the gradient of the stream after the attention, and becomes that of the stream before it. Adds to
/// `grads`, or overwrites them where the pass is fresh.
void attention_backward(Pass const& pass, BlockTensors const& weights, BlockTensors const& grads,
                        BlockActivations const& acts, BlockGradients const& temporary, Selection const& selection);

}  // namespace perigee
