#include "base/printable.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace perigee {

namespace {

/// Bytes of the UTF-8 sequence at the front of `text`; 1 where it is none.
size_t sequence_length(std::string_view text) {
    auto const lead = static_cast<uint8_t>(text.front());
    size_t const length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;
    if (length > text.size() || lead > 0xF4) return 1;
    for (size_t i = 1; i < length; ++i)
        if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) return 1;
    return length;
}

std::string escaped(std::string_view text, std::string_view kept) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        size_t const length = sequence_length(text);
        auto const first = static_cast<uint8_t>(text[0]);
        bool const c0 = first < 0x20 && kept.find(text[0]) == kept.npos;
        bool const c1 = length == 2 && first == 0xC2 && static_cast<uint8_t>(text[1]) < 0xA0;
        bool const lone = length == 1 && 0x80 <= first && first < 0xA0;
        if (c0 || c1 || lone || first == 0x7F)
            out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[length - 1]));
        else
            out += text.substr(0, length);
        text.remove_prefix(length);
    }
    return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, "\n\t"); }
std::string printable_name(std::string_view text) { return escaped(text, ""); }

void print_generated(std::string const& text) {
    // mpirun can give ranks a terminal although their output goes to a file: launch/mpirun.sh knows.
    char const* const output = std::getenv("PERIGEE_OUTPUT");
    bool const to_terminal = ::isatty(STDOUT_FILENO) == 1 && (output == nullptr || std::strcmp(output, "file") != 0);
    fmt::print("{}", to_terminal ? printable(text) : text);
    std::fflush(stdout);
}

}  // namespace perigee
