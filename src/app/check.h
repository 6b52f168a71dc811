// `perigee check`: what a configuration means, without data, devices or a job.
#pragma once

#include "train/options.h"

namespace perigee {

/// Prints to stdout the resolved configuration as YAML and, as YAML comments, the layout over `world_size` ranks,
/// parameters, bytes per rank by class, FLOPs, and what each rank sends in a step. What `train.recompute: auto` means
/// is decided by this machine's memory, of which `local_ranks` share the host's, where it has the device. `options`
/// are resolved and free of problems. Throws Category::config afterwards, in train's words, where train would refuse to
/// start.
void print_check(RunOptions const& options, int world_size, int local_ranks = 1);

}  // namespace perigee
