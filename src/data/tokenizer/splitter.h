// Cuts a text into the words that tokens never cross: a chain of patterns, each cutting the pieces of the one before.
// Source: Hugging Face tokenizers, src/pre_tokenizers and src/tokenizer/normalizer.rs (SplitDelimiterBehavior).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex.h"

namespace perigee {

/// What becomes of the matches of a pattern.
enum class MatchBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct SplitStep {
    Regex regex;
    MatchBehavior behavior = MatchBehavior::isolated;
    bool invert = false;  ///< what lies between the matches counts as the match
};

class Splitter {
  public:
    using Use = std::function<void(std::string_view)>;

    explicit Splitter(std::vector<SplitStep> steps) : steps_(std::move(steps)) {}

    /// Hands out the words in order; `text` is whole UTF-8. Empty words are left out.
    void for_each_word(std::string_view text, Regex::Scratch& scratch, Use const& use) const {
        cut(text, 0, scratch, use);
    }

  private:
    void cut(std::string_view text, size_t step, Regex::Scratch& scratch, Use const& use) const;

    std::vector<SplitStep> steps_;
};

}  // namespace perigee
