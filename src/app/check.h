// `perigee check`: what a configuration means, without data, devices or a job.
#pragma once

#include "config/device_rates.h"
#include "train/options.h"

namespace perigee {

/// Prints to stdout, as YAML comments, the layout over `world_size` ranks, parameters, bytes per rank by class, FLOPs,
/// what each rank sends in a step and, for a GPU of these rates, how long a step takes; then the resolved configuration
/// as YAML. What `auto` means, where the options have it, is decided by such a GPU's memory, else by this machine's, of
/// which `local_ranks` share the host's, where it has the device and can be asked. `options` are resolved and free of
/// problems. Throws Category::config after the first lines, in train's words, where train would refuse to start.
void print_check(RunOptions const& options, int world_size, int local_ranks = 1, DeviceRates const* rates = nullptr);

}  // namespace perigee
