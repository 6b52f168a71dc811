// Text to tokens and back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace perigee {

class Tokenizer {
  public:
    virtual ~Tokenizer() = default;
    /// Text as users write it: nothing in it becomes a special token.
    virtual std::vector<int32_t> encode(std::string_view text) const = 0;
    /// Text of a template: names of special tokens ("<|im_end|>") become their ids, what lies between them is encoded
    /// as usual. A tokenizer without special tokens takes the names for text.
    virtual std::vector<int32_t> encode_with_special(std::string_view text) const { return encode(text); }
    /// Bytes of the tokens; not necessarily whole UTF-8 characters. The end of a document is no text; ids outside the
    /// vocabulary throw Category::data.
    virtual std::string decode(std::vector<int32_t> const& ids) const = 0;
    virtual int64_t vocab_size() const = 0;
    virtual int32_t end_of_document() const = 0;
    virtual std::string name() const = 0;
};

/// "bytes": ids 0-255 are the bytes themselves, 256 ends a document. Throws Category::config for an unknown name.
std::unique_ptr<Tokenizer> make_tokenizer(std::string const& name);

}  // namespace perigee
