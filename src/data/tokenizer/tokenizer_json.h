// Hugging Face's tokenizer.json, as far as BPE tokenizers over bytes or characters go. Trusts nothing: sizes and depth
// are limited, and every field that is not understood is refused by its path in the file, never left out.
#pragma once

#include <string>

#include "data/tokenizer/bpe_tokenizer.h"

namespace perigee {

inline constexpr int64_t kMaxTokenizerBytes = int64_t{64} << 20;

/// `where` names the file in errors, which are Category::config. What the file does not hold (the end of a document)
/// stays open.
BpeTokenizerParts parse_tokenizer_json(std::string const& text, std::string const& where);

}  // namespace perigee
