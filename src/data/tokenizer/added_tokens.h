// Tokens that are found in a text before it is cut into words: special tokens and those added after training. The
// longest one that begins at the leftmost place counts.
// Source: Hugging Face tokenizers, src/tokenizer/added_vocabulary.rs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/regex.h"

namespace perigee {

struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool special = false;      ///< no text: decoding leaves it out, and text as users write it never becomes it
    bool single_word = false;  ///< not inside a word
    bool lstrip = false;       ///< takes the white space before it
    bool rstrip = false;       ///< takes the white space after it
    bool normalized = true;    ///< is looked for in normalized text
};

/// Those looked for in the same kind of text.
class AddedTokens {
  public:
    /// Contents are whole UTF-8 and not empty; of equal ones the last counts.
    explicit AddedTokens(std::vector<AddedToken> tokens);

    /// A stretch of the text: a token, or text between tokens (id -1).
    using Use = std::function<void(std::string_view text, int32_t id)>;
    /// Hands out the stretches in order; empty ones are left out. Without `special`, special tokens are not looked for.
    void for_each_stretch(std::string_view text, bool special, Regex::Scratch& scratch, Use const& use) const;

    bool empty() const { return tokens_.empty(); }

  private:
    struct Found {
        AddedToken const* token;
        size_t begin, end;
    };
    /// Begins and ends at or after `from`; a null token where there is none.
    Found find(std::string_view text, size_t from) const;
    bool is_word_part(std::string_view text, Found const& found, Regex::Scratch& scratch) const;

    std::vector<AddedToken> tokens_;
    // A trie: the child of a node by (node << 8 | byte), and the token that ends at a node or -1.
    std::unordered_map<uint64_t, uint32_t> children_;
    std::vector<int32_t> ends_;
    std::array<bool, 256> starts_{};
    Regex word_;
};

}  // namespace perigee
