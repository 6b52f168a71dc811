// How much memory a training step takes, found out by playing one: the model's own code runs against operations that
// compute nothing and ranks that are not there, in address space that has no memory behind it. No formula has to follow
// the model's changes.
#pragma once

#include <cstdint>

#include "train/options.h"

namespace perigee {

struct StepMemory {
    int64_t activations = 0;  ///< peak of the arena over forward and backward of one micro-batch, in bytes
    int64_t logits = 0;       ///< the part of it that holds one chunk of logits
};

/// For one rank of `world_size` computing in fp32, micro-batches of full documents, and the most demanding attention of
/// the schedule. `options` are resolved and free of problems for this world.
StepMemory step_memory(RunOptions const& options, int world_size);

}  // namespace perigee
