// Text to tokens and back. Text is UTF-8; where it is not, each broken sequence counts as U+FFFD, as in the reference
// libraries (the byte tokenizer takes bytes as they are). Const functions may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_system.h"

namespace perigee {

/// What a text follows. Some tokenizers put a space before a text that follows nothing, or nothing but a special token.
enum class TextAfter { nothing, special, text };

/// What names of special tokens in a text are. `unguarded`: those tokens, but for names that hold kGuard.
enum class SpecialNames { text, tokens, unguarded };
inline constexpr std::string_view kGuard = "\xEF\xB7\x90";  // U+FDD0, which is no character
std::string without_guards(std::string_view text);

class Tokenizer {
  public:
    virtual ~Tokenizer() = default;
    /// The tokens of text as users write it: nothing in it becomes a special token, nothing is put before or after it
    /// but the space that `after` may ask for.
    std::vector<int32_t> encode(std::string_view text, TextAfter after = TextAfter::nothing) const {
        return encode_text(text, after, SpecialNames::text);
    }
    /// Text of a template: names of special tokens ("<|im_end|>") become their ids, what lies between them is encoded
    /// as usual. A tokenizer without special tokens takes the names for text.
    std::vector<int32_t> encode_with_special(std::string_view text, TextAfter after = TextAfter::nothing) const {
        return encode_text(text, after, SpecialNames::tokens);
    }
    /// The same where names with kGuard inside are text. All guards are left out.
    std::vector<int32_t> encode_guarded(std::string_view text, TextAfter after = TextAfter::nothing) const {
        return encode_text(text, after, SpecialNames::unguarded);
    }
    /// The bytes that a token stands for inside a text, not necessarily whole characters; the name of a special token.
    /// Ids outside the vocabulary throw Category::data.
    virtual std::string piece(int32_t id) const = 0;
    /// Special tokens are no text. False for ids outside the vocabulary.
    virtual bool is_special(int32_t id) const = 0;
    /// The bytes of the tokens, without the special ones.
    virtual std::string decode(std::vector<int32_t> const& ids) const;
    /// The token whose piece this is.
    virtual std::optional<int32_t> find(std::string_view piece) const = 0;
    /// Whether names in text can be special tokens at all.
    virtual bool knows_special() const { return true; }
    /// One more than the largest id.
    virtual int64_t vocab_size() const = 0;
    /// What stands before every document: the begin-of-text token where the tokenizer has that habit, else nothing.
    virtual std::vector<int32_t> prefix() const { return {}; }
    /// Throws Category::config where the tokenizer does not say which token it is.
    virtual int32_t end_of_document() const = 0;
    virtual std::string name() const = 0;

  private:
    virtual std::vector<int32_t> encode_text(std::string_view text, TextAfter after, SpecialNames names) const = 0;
};

/// "bytes": ids 0-255 are the bytes themselves, 256 ends a document. Else a tokenizer.json, a tokenizer.model or a
/// folder with one (data/tokenizer/tokenizer_files.h). Throws Category::config.
std::unique_ptr<Tokenizer> make_tokenizer(FileSystem& files, std::string const& name);

/// Text that arrives token by token: hands out whole characters only. What it hands out in all is the text of all
/// tokens, with U+FFFD for what is not UTF-8.
class StreamDecoder {
  public:
    explicit StreamDecoder(Tokenizer const& tokenizer) : tokenizer_(&tokenizer) {}
    std::string push(int32_t id);
    /// What is left after the last token: U+FFFD for half a character.
    std::string finish();

  private:
    Tokenizer const* tokenizer_;
    std::string pending_;  ///< the start of a character
};

}  // namespace perigee
