// The name somebody probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee {

/// The nearest of `known` within two edits (letter case and - for _ are free), or one that `name` begins, or that
/// begins `name`; empty when nothing is near.
std::string nearest(std::string_view name, std::vector<std::string> const& known);

}  // namespace perigee
