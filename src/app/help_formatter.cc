#include "app/help_formatter.h"

#include <fmt/format.h>

namespace perigee {
namespace {

constexpr size_t kColumns = 79;
constexpr size_t kOptionColumns = 24, kCommandColumns = 15;  // what their names take

/// A name and its meaning, whose lines stand below each other.
std::string row(std::string const& name, std::string const& meaning, size_t indent) {
    std::string result = fmt::format("{:<{}}", name, indent);
    size_t column = result.size();
    size_t begin = 0;
    if (column > indent || result.back() != ' ') column = kColumns;  // the meaning begins on a line of its own
    while (begin < meaning.size()) {
        size_t const end = std::min(meaning.find(' ', begin), meaning.size());
        bool const first = column == indent;
        if (column + (first ? 0 : 1) + end - begin > kColumns) {
            result += '\n' + std::string(indent, ' ');
            column = indent;
        } else if (!first) {
            result += ' ';
            ++column;
        }
        result.append(meaning, begin, end - begin);
        column += end - begin;
        begin = end + 1;
    }
    return result + '\n';
}

}  // namespace

std::string HelpFormatter::make_option(CLI::Option const* option, bool is_positional) const {
    return row("  " + make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option),
               kOptionColumns);
}

std::string HelpFormatter::make_subcommand(CLI::App const* command) const {
    return row("  " + command->get_name(), command->get_description(), kCommandColumns);
}

}  // namespace perigee
