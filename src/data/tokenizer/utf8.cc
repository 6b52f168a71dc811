#include "data/tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

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
