// The tokenizers of GPT-2, Llama 3 and Qwen, over bytes, and those of Llama 2 and Mistral, over characters: added
// tokens, normalization, words, byte pairs.
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

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581 stands for a space in some vocabularies

/// One step of normalization.
struct NormalStep {
    enum class Kind { nfc, prepend, replace };
    Kind kind = Kind::nfc;
    std::string from = {};  ///< replace
    std::string to = {};    ///< prepend, replace
};
std::string normalized(std::string text, std::vector<NormalStep> const& steps);

/// Which stretches of text between special tokens get `prefix` if they do not begin with it.
enum class PrefixScheme { never, first, always };
/// What decoding takes from the beginning of a text.
enum class DecodeStrip { nothing, one_space, spaces_of_first_token };

struct BpeTokenizerParts {
    std::string name;
    std::vector<AddedToken> added;
    std::vector<NormalStep> normalizer;
    std::string prefix_text = {};
    PrefixScheme prefix_scheme = PrefixScheme::never;
    bool marks_spaces = false;  ///< spaces become kSpaceMark before the text is cut into words
    bool marks_pieces = false;  ///< tokens spell a space as kSpaceMark
    DecodeStrip decode_strip = DecodeStrip::nothing;
    std::vector<SplitStep> split;
    BpeModel model;
    std::vector<std::string> pieces;  ///< by id; empty where an id is not used
    std::vector<int32_t> prefix;
    std::optional<int32_t> end_of_document;
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerParts parts);

}  // namespace perigee
