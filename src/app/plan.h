// How long a step takes on a kind of GPU, and which layouts are best: `perigee check --device`, `--fit`.
#pragma once

#include <string>
#include <vector>

#include "app/dry_run.h"
#include "config/device_rates.h"

namespace perigee {

/// Bytes of a GPU for a step: all but a twentieth, which its libraries take.
int64_t bytes_for_a_step(DeviceRates const& rates);

/// What `perigee check --device` prints of a step, as YAML comments: times by what they are spent on, each marked as
/// measured or assumed, as its rates are but for that of a launch; the memory that it takes, and whether that fits.
std::string time_report(RunOptions const& options, int world_size, StepCost const& cost, DeviceRates const& rates);

/// A layout whose step fits into memory.
struct Layout {
    RunOptions options;  ///< with its parallel section and its recomputation
    StepCost cost;
};
/// The fastest of all that fit, fastest first: tensor sizes within a host and context sizes that divide the model and
/// the ranks, stages of sharding, and for each the cheapest recomputation that fits. Other keys stay, those of the
/// batch too. Throws what the kernels refuse where no layout fits and they refuse one, and Category::config where no
/// layout divides the batch and the model.
std::vector<Layout> best_layouts(RunOptions const& options, int world_size, DeviceRates const& rates, size_t count = 5);

/// They as YAML: a block of keys to paste for each, under a comment with its time and memory. Throws Category::config
/// where there is none.
std::string layouts_report(std::vector<Layout> const& layouts, int world_size, DeviceRates const& rates);

}  // namespace perigee
