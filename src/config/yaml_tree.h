// YAML text as a tree that remembers where everything stood, how it was written, and every key, duplicates included.
// The caps that make hostile text harmless are enforced here: size, depth, aliases.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/findings.h"

namespace perigee {

struct YamlNode {
    enum class Kind { null, scalar, list, map };
    Kind kind = Kind::null;
    Place place;
    std::string text;     ///< scalar
    bool quoted = false;  ///< scalar in quotes, or a block scalar: always text
    std::vector<std::shared_ptr<YamlNode const>> items;
    std::vector<std::pair<std::shared_ptr<YamlNode const>, std::shared_ptr<YamlNode const>>>
        entries;  ///< in file order
};

inline constexpr size_t kMaxYamlBytes = size_t{1} << 20;
inline constexpr size_t kMaxYamlDepth = 32;
inline constexpr int kMaxYamlAliases = 100;

/// The one document of `text`; a null node when it is empty, nullptr when it is no acceptable YAML, with the reason
/// added to `findings`. Refuses text beyond the caps, tabs in the indentation, byte-order marks, control characters,
/// invalid UTF-8, explicit tags, merge keys and further documents.
std::shared_ptr<YamlNode const> parse_yaml(std::string const& text, Findings& findings);

}  // namespace perigee
