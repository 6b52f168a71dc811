// Unicode's normalization form C, by utf8proc.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

/// `text` is whole UTF-8. Throws Category::data where utf8proc gives up.
std::string nfc(std::string_view text);

/// Whether the text is plainly in form C already: it has no character at or above U+0300, where combining begins.
bool is_plainly_nfc(std::string_view text);

}  // namespace perigee
