// YAML to options and back. Strict: unknown and duplicate keys, wrong types and values out of range are errors with
// file:line:column and the nearest known name, and all of them are reported at once.
#pragma once

#include <string>
#include <vector>

#include "base/schema.h"
#include "train/options.h"

namespace perigee {

/// Reads `path` over the defaults, then applies overrides ("optimizer.lr=1e-3", in order). Throws Category::config with
/// one line per problem. Does not check rules between fields: see problems(RunOptions).
RunOptions load_config(std::string const& path, std::vector<std::string> const& overrides);
/// The same from text; `name` stands for the file in messages.
RunOptions parse_config(std::string const& text, std::string const& name, std::vector<std::string> const& overrides);

/// Gives options that were read before what the file at `path` says.
void apply_file(RunOptions& options, std::string const& path);
/// The same with overrides.
void apply_overrides(RunOptions& options, std::vector<std::string> const& overrides);

/// Throws Category::config with all problems between the keys of `file`, for a job of so many ranks.
void refuse_problems(RunOptions const& options, int world_size, std::string const& file,
                     TrainingData training_data = TrainingData::needed);

/// Complete YAML of these options, every key present, which parses to the same options.
std::string to_yaml(RunOptions const& options);

/// A text as a YAML scalar that reads back as the same text, for building overrides.
std::string yaml_text(std::string const& text);

/// A key that holds a value, with dots and the index 0 for items of lists, as an override names it.
struct ConfigKey {
    std::string name;
    std::vector<std::string> values;  ///< of a choice or a boolean; empty where there are too many
};
/// All of them, in the order of docs/config.md.
std::vector<ConfigKey> config_keys();

/// docs/config.md: every key with type, default, range and meaning.
std::string config_reference();

}  // namespace perigee
