// eval and generate compute with the model that a checkpoint was trained as.
#pragma once

#include <string>
#include <vector>

#include "train/session.h"

namespace perigee {

/// Where options were read from.
struct OptionSources {
    std::string const& file;
    std::vector<std::string> const& overrides;
};

/// Gives `options` the checkpoint's values for the keys that define the model, its kind of attention at its step, and
/// its tokenizer, where `options` has the default one. What the overrides say of these keys wins, what the file says
/// does not. With `speaks`, the log lists both.
void follow(RunOptions& options, Checkpoint const& checkpoint, OptionSources const& sources, bool speaks);

}  // namespace perigee
