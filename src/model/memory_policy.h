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
    /// Layers whose kept activations wait for their backward in memory of the host. At most all but two.
    int64_t offload = 0;
};

/// The layers that take turns in two slots of device memory, ascending: `offload` that wait on the host and two more,
/// spread evenly, so that a copy overlaps with the layers between two turns. Even turns have one slot, odd turns the
/// other. The last two turns stay in their slots. Empty without offload.
inline std::vector<int64_t> layers_taking_turns(int64_t layers, int64_t offload) {
    std::vector<int64_t> taking;
    if (offload > 0)
        for (int64_t turn = 0; turn < offload + 2; ++turn) taking.push_back(turn * layers / (offload + 2));
    return taking;
}

}  // namespace perigee
