// Text from elsewhere, made safe to print: paths, names and generated text may hold escape sequences.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace perigee {

/// `text` with every control character but newline and tab written as \x1b: C0, DEL, C1 (as UTF-8 or as a lone byte).
/// A terminal then shows it and obeys nothing in it. All other bytes stay.
std::string printable(std::string_view text);

/// The same, with newline and tab written so too: for a name inside a line.
std::string printable_name(std::string_view text);

/// Prints what printable() makes of the formatted text to standard output.
template <class... Args>
void print_printable(fmt::format_string<Args...> format, Args&&... args) {
    fmt::print("{}", printable(fmt::format(format, std::forward<Args>(args)...)));
}

/// Prints text of a model to standard output at once: as printable() makes it on a terminal, unchanged into a pipe.
void print_generated(std::string const& text);

}  // namespace perigee
