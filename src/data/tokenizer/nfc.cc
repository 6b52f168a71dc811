#include "data/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace perigee {

namespace {

constexpr size_t kPieceBytes = 4096;  // at a time, so that the code points stay in the cache

void append_nfc(std::string_view piece, std::string& text) {
    auto const* const bytes = reinterpret_cast<utf8proc_uint8_t const*>(piece.data());
    auto const size = static_cast<utf8proc_ssize_t>(piece.size());
    constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    // Decomposition makes at most three characters of one (U+0390); a character has at least one byte. Two more are for
    // utf8proc, which writes a zero byte after the text.
    std::vector<utf8proc_int32_t> points(piece.size() * 3 + 2);
    auto count = utf8proc_decompose(bytes, size, points.data(), static_cast<utf8proc_ssize_t>(points.size()), kOptions);
    if (count >= 0) count = utf8proc_reencode(points.data(), count, kOptions);
    if (count < 0) fail(Category::data, "normalizing {} bytes: {}", size, utf8proc_errmsg(count));
    text.append(reinterpret_cast<char const*>(points.data()), static_cast<size_t>(count));
}

}  // namespace

bool is_plainly_nfc(std::string_view text) {
    return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

std::string nfc(std::string_view text) {
    std::string normalized;
    normalized.reserve(text.size());
    while (!text.empty()) {
        // Nothing combines with an ASCII character that follows it, so the text can be cut there.
        auto const is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
        auto const cut = std::find_if(text.begin() + static_cast<ptrdiff_t>(std::min(kPieceBytes, text.size())),
                                      text.end(), is_ascii);
        std::string_view const piece(text.begin(), cut);
        if (is_plainly_nfc(piece)) {
            normalized += piece;
        } else {
            append_nfc(piece, normalized);
        }
        text.remove_prefix(piece.size());
    }
    return normalized;
}

}  // namespace perigee
