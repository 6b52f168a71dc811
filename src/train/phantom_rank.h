// Training as one rank of a job whose other ranks do not exist: what parallel/phantom.h needs to know of a run.
#pragma once

#include "parallel/phantom.h"
#include "train/learner.h"

namespace perigee {

/// Rank `rank` of a job of this many ranks; links take no time. `options` are resolved and free of problems for it.
PhantomOptions phantom_options(RunOptions const& options, int world_size, int rank);

/// As Learner::initialise, with every rank's share of the weights. `session` is of the phantom's mesh.
void initialise_phantom(Session& session, Learner& learner, uint64_t seed);

}  // namespace perigee
