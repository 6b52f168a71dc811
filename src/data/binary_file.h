// Files that hold no text: archives, images, tables, random bytes. Without this check they would become tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace perigee {

class TextReader;

/// What a file is that begins with `head` (its first kilobytes, decompressed), where that is no text: the format known
/// by its first bytes, or more than a tenth of zero bytes and broken UTF-8. Source of the first bytes: file(1).
std::optional<std::string> binary_kind(std::string_view head);

/// The same of a file of which nothing has been read. The middle and the end of one that is not compressed count too: a
/// header may look like text.
std::optional<std::string> binary_kind(TextReader& reader);

}  // namespace perigee
