// Regular expressions as tokenizer files write them (Oniguruma's syntax, the reference's engine), matched by PCRE2's
// compiler to machine code. PCRE2 gets only what means the same in both; the rest goes to Oniguruma, since a pattern
// read a little differently would cut a few words of a corpus differently and nobody would see it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace perigee {

constexpr size_t kMaxPatternBytes = 16 << 10;  ///< of a pattern that is read

class Regex {
  public:
    /// Throws Category::config for what is not a pattern or matches an empty text.
    explicit Regex(std::string const& pattern);

    /// What one thread needs to match.
    class Scratch {
      public:
        Scratch();
        ~Scratch();
        /// To be called before each text: bounds the time of all its matches together by a multiple of its length.
        void begin_text(size_t bytes);
        Scratch(Scratch const&) = delete;
        Scratch& operator=(Scratch const&) = delete;

      private:
        friend class Regex;
        struct Impl;
        std::unique_ptr<Impl> impl_;
    };

    struct Match {
        size_t begin, end;
    };
    /// The first match that begins at `from` or later; never empty. `text` is whole UTF-8 and `from` lies between
    /// characters. Throws Category::data, naming the pattern, where it takes far longer than patterns in use do: it
    /// backtracks without end, or runs over the same characters again and again.
    std::optional<Match> find(std::string_view text, size_t from, Scratch& scratch) const;

    /// Whether PCRE2 matches it.
    bool is_pcre2() const;

  private:
    struct Code;
    std::optional<Match> find_from(std::string_view text, size_t from, size_t last, Scratch& scratch) const;
    std::shared_ptr<Code const> code_;
};

/// The pattern as PCRE2 understands it (with PCRE2_UTF): white space is Unicode's White_Space property, scripts mean
/// the script property, groups do not capture. Throws Category::config for what would mean another thing.
std::string to_pcre2(std::string_view pattern);
/// A pattern that matches exactly this text.
std::string literal_pattern(std::string_view text);

}  // namespace perigee
