// Whether a run can fit into memory at all, asked before it starts.
#pragma once

#include "train/options.h"

namespace perigee {

/// Throws OutOfMemory where a step takes more memory than this rank can ever have: on a GPU all of that GPU's,
/// otherwise the host's, see device/host_memory.h. Says both numbers, where memory would go, and what to change. Counts
/// with full attention, the least that any choice of MoBA takes; a run that passes may still meet the end of its
/// memory.
void check_fits(RunOptions const& options, int world_size, int local_ranks);

}  // namespace perigee
