// Patterns that PCRE2 lacks or reads otherwise, matched by the reference's own engine: Oniguruma with Ruby's syntax, as
// the onig crate of Hugging Face's tokenizers uses it. Several times slower than PCRE2.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace perigee {

class Oniguruma {
  public:
    /// Throws Category::config for what is not a pattern or matches an empty text.
    explicit Oniguruma(std::string const& pattern);

    /// Begin and end of the first match that begins at `from` or later. `text` is whole UTF-8. Throws Category::config
    /// for an empty match, Category::data where the pattern backtracks without end. May be called from several threads.
    std::optional<std::pair<size_t, size_t>> find(std::string_view text, size_t from) const;

  private:
    struct Code;
    std::string pattern_;
    std::shared_ptr<Code const> code_;
};

}  // namespace perigee
