// How the readers of JSON lines tell what nlohmann's parser did not like.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

inline constexpr int kMaxJsonDepth = 100;

/// "malformed JSON at byte 4: syntax error ...", from what its exception says.
std::string json_problem(size_t position, std::string_view what);

}  // namespace perigee
