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

/// A space that the model puts before a text stands at the beginning of a document only, as with `legacy: false` of
/// transformers' LlamaTokenizer. Throws Category::config for a file the library refuses.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(SentencePieceParts const& parts);

}  // namespace perigee
