// Where a rank computes: its GPU, its CPUs, and its neighbours.
#pragma once

#include <span>
#include <string>

#include "comm/launch.h"
#include "comm/placement.h"
#include "train/options.h"

namespace perigee {

/// Gives every rank of `placement` a GPU, or leaves all on the CPU. `auto` takes GPUs as soon as any rank reports one,
/// or a reason why it cannot use one that is there, and then, as with `cuda`, every rank must get one: there is no
/// silent way back to the CPU. Throws Category::config where one cannot: give_gpus(). Pure.
void choose_devices(Placement& placement, std::span<RankReport const> reports, DeviceChoice choice,
                    ParallelOptions const& options);

/// The warning of a build without CUDA that computes on the CPU under `auto` although a rank's host has GPUs; empty
/// where none has. Pure.
std::string idle_gpus(std::span<RankReport const> reports, DeviceChoice choice);

/// Gathers what every rank sees of its host, gives each its place, binds this process to it and says so in the log. To
/// be called before a device is made. Throws Category::config, the same on every rank. Collective.
Seat take_seat(RunOptions const& options, Launch& launch);

}  // namespace perigee
