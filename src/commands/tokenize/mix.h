// `tokenize --mix NAME=WEIGHT:INPUT`: several data sets and their shares of training, in one command.
#pragma once

#include <string>
#include <vector>

#include "io/file_system.h"

namespace perigee {

struct MixPart {
    std::string name;  ///< the data set becomes OUTPUT_NAME
    double weight = 1;
    std::vector<Path> inputs;
};

/// Parts in the order in which their names come first; a name may come again with further inputs, without a weight or
/// with the same one. Throws Category::config for what is not so written.
std::vector<MixPart> parse_mix(std::vector<std::string> const& texts);

/// The override that trains on the parts: data.train=[{path: ..., weight: ...}, ...].
std::string mix_override(std::vector<MixPart> const& parts, Path const& output);

/// Prefix of a part's files.
Path mix_output(Path const& output, MixPart const& part);

}  // namespace perigee
