// How a model's passes save memory. None of it changes a result, but for mlp_chunk the order in which a gradient's
// products are summed.
#pragma once

#include "model/options.h"

namespace perigee {

struct MemoryPolicy {
    std::vector<Recompute> recompute = {};  ///< by layer; none: everything is kept
    /// Tokens that the MLP computes at once, or 0 for all. The activations inside it are of one chunk only: no layer
    /// keeps them, whatever its level.
    int64_t mlp_chunk = 0;
    /// Layers, from the first on, whose kept activations wait for their backward in memory of the host. At most all but
    /// two: those two stay on the device, and their memory serves the others in turn.
    int64_t offload = 0;
};

}  // namespace perigee
