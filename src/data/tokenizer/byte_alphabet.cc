#include "data/tokenizer/byte_alphabet.h"

#include <array>

#include "data/tokenizer/utf8.h"

namespace perigee {

namespace {

struct Alphabet {
    std::array<char32_t, 256> character{};
    std::array<int, 0x144> byte{};  ///< -1: no byte
};

constexpr Alphabet make_alphabet() {
    Alphabet alphabet;
    alphabet.byte.fill(-1);
    char32_t next = 0x100;
    for (size_t i = 0; i < 256; ++i) {
        bool const itself = (0x21 <= i && i <= 0x7E) || (0xA1 <= i && i <= 0xAC) || (0xAE <= i);
        char32_t const character = itself ? static_cast<char32_t>(i) : next++;
        alphabet.character[i] = character;
        alphabet.byte[character] = static_cast<int>(i);
    }
    return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
    std::string bytes;
    for (; !token.empty(); token.remove_prefix(utf8::first(token).bytes)) {
        char32_t const character = utf8::code_point(token);
        if (character >= kAlphabet.byte.size() || kAlphabet.byte[character] < 0) return std::nullopt;
        bytes.push_back(static_cast<char>(kAlphabet.byte[character]));
    }
    return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
    std::string token;
    for (char const byte : bytes) utf8::append(kAlphabet.character[static_cast<unsigned char>(byte)], token);
    return token;
}

}  // namespace perigee
