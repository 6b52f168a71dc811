// eval and generate compute with the model that a checkpoint was trained as.
#pragma once

#include <string>
#include <vector>

#include "train/session.h"

namespace perigee {

/// Gives `options`, which were read from a file with these overrides, the values of the checkpoint for the keys that
/// define the model; what the overrides say of them wins. With `speaks`, the log says what differs.
void follow(RunOptions& options, Checkpoint const& checkpoint, std::vector<std::string> const& overrides, bool speaks);

}  // namespace perigee
