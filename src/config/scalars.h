// The strict rules by which a YAML scalar is a boolean, an integer, a number or text, and how each is written so that
// it reads back as the same value. YAML 1.2's core schema without its leniencies: no octal or hexadecimal integers, no
// leading zeros, no infinity or NaN, `true` and `false` in lower case only; yes, no, on and off are text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/schema.h"
#include "config/yaml_tree.h"

namespace perigee {

enum class ScalarKind { boolean, integer, number, text };

/// What an unquoted scalar is. Things that almost are numbers (08, 0x10, 1_000, .nan) are text.
ScalarKind classify(std::string_view plain);

/// The value of a scalar for which classify() says so; nothing when it does not fit in 64 bits.
std::optional<int64_t> to_integer(std::string_view plain);
/// Accepts integers too; nothing when it is too large or too small for a double.
std::optional<double> to_number(std::string_view plain);

/// The node as an error message names what it found: `the text "abc"`, `the integer 5`, `a list`, `nothing`.
std::string found(YamlNode const& node);
/// What to do about a node that was to be of this kind, as "; write ..."; empty when there is nothing useful to say.
std::string hint(ScalarKind wanted, YamlNode const& node);

std::string write_number(double value);          ///< the shortest text that reads back as the same double
std::string write_text(std::string_view value);  ///< plain where that reads back as the same text, else in quotes
std::string shortened(std::string_view text);    ///< on one line, of a length fit for a message
std::string shown(std::string_view text);        ///< shortened(), in quotes

/// "at least 1", "above 0 and at most 1"; empty for a range without ends.
std::string to_string(Range const& range);
bool inside(Range const& range, double value);

}  // namespace perigee
