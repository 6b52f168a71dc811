// JSON from foreign files, before a JSON library builds anything of it: what passes has no key twice in one object,
// which libraries resolve silently and each in its own way, and no depth that recursion could choke on.
// And how messages quote it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace perigee {

inline constexpr int kMaxJsonDepth = 100;  ///< of values in lines of JSON

/// Throws Error of `category`, beginning with `where`, unless `text` is one JSON value in UTF-8, at most `max_depth`
/// lists and objects deep, without repeated keys.
void check_json(std::string_view text, std::string const& where, Category category, int max_depth);

/// The beginning of a value as JSON in ASCII, for messages: text cut inside a character would be no UTF-8.
std::string json_excerpt(nlohmann::ordered_json const& value);

/// What to say of a NUL character in the text, where nlohmann's parser would end as if the text did.
std::optional<std::string> nul_problem(std::string_view text);

/// "malformed JSON at byte 4: syntax error ...", from what the exception of nlohmann's parser says.
std::string json_problem(size_t position, std::string_view what);

}  // namespace perigee
