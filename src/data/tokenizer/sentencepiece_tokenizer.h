// tokenizer.model files, read and applied by the sentencepiece library: Llama 2, Mistral, Gemma.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/tokenizer.h"

namespace perigee {

struct SentencePieceParts {
    std::string name;
    std::string model;  ///< contents of the file
    bool add_bos = true;
    std::optional<int32_t> end_of_document;  ///< unless it is the model's own
};

/// Broken UTF-8 is left to the library, which takes each byte of it for U+FFFD. Throws Category::config for a file the
/// library refuses.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(SentencePieceParts const& parts);

}  // namespace perigee
