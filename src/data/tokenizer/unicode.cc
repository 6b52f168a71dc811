#include "data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace perigee::utf8 {

namespace {

/// Bytes of a character by its first byte, and the range of its second byte; 0 bytes: no character starts so.
struct Lead {
    size_t bytes;
    unsigned char low = 0x80, high = 0xBF;
};

Lead lead(unsigned char byte) {
    if (byte < 0x80) return {1};
    if (byte < 0xC2) return {0};
    if (byte < 0xE0) return {2};
    if (byte == 0xE0) return {3, 0xA0, 0xBF};
    if (byte == 0xED) return {3, 0x80, 0x9F};  // no surrogates
    if (byte < 0xF0) return {3};
    if (byte == 0xF0) return {4, 0x90, 0xBF};
    if (byte < 0xF4) return {4};
    if (byte == 0xF4) return {4, 0x80, 0x8F};  // nothing above U+10FFFF
    return {0};
}

/// Bytes of plain ASCII at the start, eight at a time.
size_t ascii_prefix(std::string_view text) {
    size_t at = 0;
    for (uint64_t eight = 0; at + 8 <= text.size(); at += 8) {
        std::memcpy(&eight, text.data() + at, 8);
        if ((eight & 0x8080808080808080u) != 0) break;
    }
    return at;
}

}  // namespace

Step first(std::string_view text) {
    auto const byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    Lead const wanted = lead(byte(0));
    if (wanted.bytes == 0) return {Step::Kind::broken, 1};
    for (size_t i = 1; i < wanted.bytes; ++i) {
        if (i == text.size()) return {Step::Kind::unfinished, i};
        bool const fits = i == 1 ? wanted.low <= byte(i) && byte(i) <= wanted.high : (byte(i) & 0xC0) == 0x80;
        if (!fits) return {Step::Kind::broken, i};
    }
    return {Step::Kind::whole, wanted.bytes};
}

bool is_whole(std::string_view text) {
    while (!text.empty()) {
        text.remove_prefix(ascii_prefix(text));
        for (int i = 0; i < 32 && !text.empty(); ++i) {
            Step const step = first(text);
            if (step.kind != Step::Kind::whole) return false;
            text.remove_prefix(step.bytes);
        }
    }
    return true;
}

std::string_view last(std::string_view text) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    return text.substr(begin);
}

bool is_space(char32_t c) {
    return (9 <= c && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (0x2000 <= c && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

char32_t code_point(std::string_view text) {
    auto const byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
    auto const tail = [&](size_t i) { return byte(i) & 0x3F; };
    if (byte(0) < 0x80) return byte(0);
    if (byte(0) < 0xE0) return (byte(0) & 0x1F) << 6 | tail(1);
    if (byte(0) < 0xF0) return (byte(0) & 0x0F) << 12 | tail(1) << 6 | tail(2);
    return (byte(0) & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
}

void append(char32_t code_point, std::string& text) {
    auto const put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
    auto const put_tail = [&](int shift) { put(0x80 | (code_point >> shift & 0x3F)); };
    if (code_point < 0x80) return put(code_point);
    if (code_point < 0x800) return put(0xC0 | code_point >> 6), put_tail(0);
    if (code_point < 0x10000) return put(0xE0 | code_point >> 12), put_tail(6), put_tail(0);
    put(0xF0 | code_point >> 18), put_tail(12), put_tail(6), put_tail(0);
}

std::string repaired(std::string_view text) {
    std::string whole;
    whole.reserve(text.size());
    while (!text.empty()) {
        Step const step = first(text);
        whole += step.kind == Step::Kind::whole ? text.substr(0, step.bytes) : kReplacement;
        text.remove_prefix(step.bytes);
    }
    return whole;
}

}  // namespace perigee::utf8

namespace perigee {

namespace {

constexpr size_t kCachedBytes = 4096;  // at a time, so that the code points stay in the cache

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
        auto const cut = std::find_if(text.begin() + static_cast<ptrdiff_t>(std::min(kCachedBytes, text.size())),
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
