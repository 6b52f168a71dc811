#include "data/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace perigee {

namespace {

constexpr size_t kPieceBytes = 4096;  // at a time, so that the code points stay in the cache

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

using Points = std::vector<utf8proc_int32_t>;

void check(utf8proc_ssize_t result) {
    if (result < 0) fail(Category::data, "normalizing: {}", utf8proc_errmsg(result));
}

void decompose(std::string_view piece, Points& points) {
    std::array<utf8proc_int32_t, 8> parts{};  // Decomposition makes at most four characters of one.
    for (; !piece.empty(); piece.remove_prefix(utf8::first(piece).bytes)) {
        auto const count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(utf8::code_point(piece)), parts.data(),
                                                   std::ssize(parts), kOptions, nullptr);
        check(count);
        points.insert(points.end(), parts.begin(), parts.begin() + count);
    }
}

/// The canonical order of combining marks: a stable sort of every run of them, where utf8proc_decompose() inserts one
/// by one, in time that grows with the square of the run. Source: Unicode Standard, section 3.11, D108 and D109.
void order_marks(Points& points) {
    auto const mark_class = [](utf8proc_int32_t point) { return utf8proc_get_property(point)->combining_class; };
    auto const is_mark = [&](utf8proc_int32_t point) { return mark_class(point) != 0; };
    for (auto begin = points.begin(); begin != points.end();) {
        begin = std::find_if(begin, points.end(), is_mark);
        auto const end = std::find_if_not(begin, points.end(), is_mark);
        std::stable_sort(begin, end, [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
        begin = end;
    }
}

void append_nfc(std::string_view piece, std::string& text) {
    Points points;
    points.reserve(piece.size() + 2);
    decompose(piece, points);
    order_marks(points);
    auto const count = std::ssize(points);
    points.push_back(0);  // utf8proc writes a zero byte after the text
    auto const bytes = utf8proc_reencode(points.data(), count, kOptions);
    check(bytes);
    text.append(reinterpret_cast<char const*>(points.data()), static_cast<size_t>(bytes));
}

}  // namespace

bool is_plainly_nfc(std::string_view text) {
    return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

std::string nfc(std::string_view text) {
    std::string normalized;
    normalized.reserve(text.size());
    while (!text.empty()) {
        // Neither ASCII nor U+4000 to U+9FFF combines with what stands before it, so the text can be cut there.
        auto const stands_alone = [](char c) {
            auto const byte = static_cast<unsigned char>(c);
            return byte < 0x80 || (0xE4 <= byte && byte <= 0xE9);
        };
        auto const cut = std::find_if(text.begin() + static_cast<ptrdiff_t>(std::min(kPieceBytes, text.size())),
                                      text.end(), stands_alone);
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
