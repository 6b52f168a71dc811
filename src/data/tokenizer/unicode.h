// Whole and broken UTF-8, and Unicode's normalization form C (by utf8proc). Broken sequences are cut as the Unicode
// standard advises (maximal subparts, section 3.9), which is what Python and Rust do when they replace them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace perigee::utf8 {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Step {
    enum class Kind {
        whole,
        broken,
        unfinished  ///< the text ends inside a character
    };
    Kind kind;
    size_t bytes;  ///< of the character, or of what one U+FFFD replaces; at least 1
};

/// The first character of a text that is not empty.
Step first(std::string_view text);

bool is_whole(std::string_view text);

/// The last character of a whole text that is not empty.
std::string_view last(std::string_view text);

/// Unicode's property White_Space.
bool is_space(char32_t c);

/// The code point of the whole character that `text` begins with.
char32_t code_point(std::string_view text);
void append(char32_t code_point, std::string& text);

/// The text with each broken or unfinished sequence replaced by U+FFFD.
std::string repaired(std::string_view text);

}  // namespace perigee::utf8

namespace perigee {

/// The text in form C. `text` is whole UTF-8. Throws Category::data where utf8proc gives up.
std::string nfc(std::string_view text);

/// Whether the text is plainly in form C already: it has no character at or above U+0300, where combining begins.
bool is_plainly_nfc(std::string_view text);

}  // namespace perigee
