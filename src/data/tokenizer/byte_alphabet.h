// How vocabularies of byte-level tokenizers spell bytes: 188 of them as the Latin-1 character of the same number, the
// other 68 (controls, the space, ...) as U+0100 and on. Source: bytes_to_unicode of OpenAI's GPT-2, src/encoder.py.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace perigee {

/// The bytes of a token spelled so; nothing where a character spells no byte. `token` is whole UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token);

/// The spelling of bytes.
std::string token_of_bytes(std::string_view bytes);

}  // namespace perigee
