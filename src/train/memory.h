// What a rank's device memory goes to, and what a user can do when it does not suffice.
#pragma once

#include <cstdint>
#include <string>

#include "train/options.h"

namespace perigee {

/// Bytes by class.
struct MemoryUse {
    int64_t weights = 0;
    int64_t gradients = 0;
    int64_t optimizer = 0;
    int64_t activations = 0;  ///< and all else that a step lays out, as far as it did
};

/// `what` failed, where memory went, and the three cheapest remedies that these options leave, one line each.
std::string out_of_memory_report(std::string const& what, MemoryUse const& use, RunOptions const& options);

}  // namespace perigee
