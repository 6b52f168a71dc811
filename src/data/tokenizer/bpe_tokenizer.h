// The tokenizers of GPT-2, Llama 3 and Qwen: added tokens, normalization, words, byte pairs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/splitter.h"

namespace perigee {

struct BpeTokenizerParts {
    std::string name;
    std::vector<AddedToken> added;
    bool nfc = false;           ///< text is brought to Unicode's form C
    bool prefix_space = false;  ///< text that does not begin with a space gets one
    std::vector<SplitStep> split;
    BpeModel model;
    std::vector<std::string> pieces;  ///< by id; empty where an id is not used
    std::vector<int32_t> prefix;
    std::optional<int32_t> end_of_document;
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerParts parts);

}  // namespace perigee
