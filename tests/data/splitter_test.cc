#include "data/tokenizer/splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <regex.h>

#include "data/tokenizer/unicode.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr char const* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char const* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Words words(std::vector<SplitStep> steps, std::string const& text) {
    Splitter const splitter(std::move(steps));
    Regex::Scratch scratch;
    Words found;
    splitter.for_each_word(text, scratch, [&](std::string_view word) { found.emplace_back(word); });
    return found;
}

Words words(std::string const& pattern, std::string const& text) { return words({{Regex(pattern)}}, text); }

// The example of Hugging Face's documentation of `Split`.
TEST(Splitter, MatchesAreTreatedAsTheirBehaviorSays) {
    auto const split = [](MatchBehavior behavior, bool invert = false) {
        return words({{Regex("-"), behavior, invert}}, "the-final--countdown");
    };
    EXPECT_THAT(split(MatchBehavior::removed), ElementsAre("the", "final", "countdown"));
    EXPECT_THAT(split(MatchBehavior::isolated), ElementsAre("the", "-", "final", "-", "-", "countdown"));
    EXPECT_THAT(split(MatchBehavior::merged_with_previous), ElementsAre("the-", "final-", "-", "countdown"));
    EXPECT_THAT(split(MatchBehavior::merged_with_next), ElementsAre("the", "-final", "-", "-countdown"));
    EXPECT_THAT(split(MatchBehavior::contiguous), ElementsAre("the", "-", "final", "--", "countdown"));
    EXPECT_THAT(split(MatchBehavior::removed, true), ElementsAre("-", "-", "-"));
}

TEST(Splitter, StepsCutThePiecesOfTheStepsBefore) {
    EXPECT_THAT(words({{Regex(R"(\p{N})")}, {Regex(kGpt2)}}, "ab12 c"), ElementsAre("ab", "1", "2", " c"));
    EXPECT_THAT(words(std::vector<SplitStep>{}, "all of it"), ElementsAre("all of it"));
}

TEST(Splitter, CutsAsGpt2AndLlama3Do) {
    std::string const text = "It's 12345 we'LL!\n\n  go   \u4e2d\u6587 ";
    EXPECT_THAT(words(kGpt2, text),
                ElementsAre("It", "'s", " 12345", " we", "'", "LL", "!", "\n\n ", " go", "  ", " \u4e2d\u6587", " "));
    EXPECT_THAT(words(kLlama3, text), ElementsAre("It", "'s", " ", "123", "45", " we", "'LL", "!\n\n", " ", " go", "  ",
                                                  " \u4e2d\u6587", " "));
}

TEST(Regex, WhiteSpaceIsUnicodesProperty) {
    std::string const mongolian = "\u180e";  // white space to PCRE2 alone
    for (char const* const space : {"\t", "\r", " ", "\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u3000"}) {
        EXPECT_THAT(words(R"(\s+)", fmt::format("a{}b", space)), ElementsAre("a", space, "b"));
        EXPECT_THAT(words(R"([\s]|\S)", space), ElementsAre(space));
        EXPECT_THAT(words(R"([\Sq]+)", fmt::format("{}{}x", space, mongolian)),
                    ElementsAre(space, fmt::format("{}x", mongolian)));
    }
    EXPECT_THAT(words(R"(\s+)", fmt::format("a{}b", mongolian)), ElementsAre(fmt::format("a{}b", mongolian)));
}

TEST(Regex, CharactersClassesAndCounts) {
    EXPECT_THAT(words("[a-c\\-\\]\u00e9-\u00eb]+", "xa-]\u00ebz"), ElementsAre("x", "a-]\u00eb", "z"));
    EXPECT_THAT(words(R"([^a-z]+)", "ab\n1c"), ElementsAre("ab", "\n1", "c"));
    EXPECT_THAT(words(R"(.{,2}x)", "abcx"), ElementsAre("a", "bcx"));
    EXPECT_THAT(words(R"(.+)", "ab\ncd"), ElementsAre("ab", "\n", "cd"));
    EXPECT_THAT(words(R"(\p{Han}+|\P{^Lu}|\x{62}\u0063|\v)", "\u4e2dbc\vAd"),
                ElementsAre("\u4e2d", "bc", "\v", "A", "d"));
    EXPECT_THAT(words(R"((?<=a)b+?|(?<!a)c++)", "abbcca"), ElementsAre("a", "b", "b", "cc", "a"));
    EXPECT_THAT(words(R"((?i:'s))", "a'\u017fb'S"), ElementsAre("a", "'\u017f", "b", "'S"));
    EXPECT_THAT(words(literal_pattern("a.*\u4e2d"), "xa.*\u4e2d"), ElementsAre("x", "a.*\u4e2d"));
}

TEST(Regex, WhatPcre2ReadsOtherwiseGoesToOniguruma) {
    struct Case {
        char const* pattern;
        char const* text;
        Words words;
    };
    Case const cases[] = {
        {R"(\w+)", "a\u0301_1-\u4e2d", {"a\u0301_1", "-", "\u4e2d"}},
        {R"(\bb+)", "abb bb", {"abb ", "bb"}},
        {R"(\h+)", "xFf0g", {"x", "Ff0", "g"}},  // hexadecimal digits, where PCRE2 means spaces
        {"^a", "a\naa", {"a", "\n", "a", "a"}},  // at every line's beginning
        {"a$", "a\naa", {"a", "\na", "a"}},
        {R"((a|b)\1)", "abbc", {"a", "bb", "c"}},
        {"[a[bc]]+", "xabcx", {"x", "abc", "x"}},
        {"[a-d&&[^b]]+", "abcd", {"a", "b", "cd"}},
        {"(?<n>a)b", "aab", {"a", "ab"}},
        {"(?>a+)b", "aabc", {"aab", "c"}},
        {"(?i:ss)", "a\u00dfSs", {"a", "\u00df", "Ss"}},
        {"(?i:\u00e9)+", "x\u00e9\u00c9", {"x", "\u00e9\u00c9"}},
        {R"(\p{Letter}+)", "ab1", {"ab", "1"}},
        {"[[:punct:]]+", "a</b>!", {"a", "</", "b", ">!"}},
        {"[[:^punct:]]+", "a<b", {"a", "<", "b"}},
    };
    for (Case const& c : cases) {
        EXPECT_FALSE(Regex(c.pattern).is_pcre2()) << c.pattern;
        EXPECT_EQ(words(c.pattern, c.text), c.words) << c.pattern;
    }
    EXPECT_EQ(words(R"(\w+)", std::string(5000, 'a')).size(), 1u);
    EXPECT_EQ(words(R"(\w+)", fmt::format("{:-<5000}a", "")).size(), 2u);
    EXPECT_TRUE(Regex(kLlama3).is_pcre2());
    EXPECT_TRUE(Regex(kGpt2).is_pcre2());
}

TEST(Regex, OnigurumaLeavesPosixPatternsToLibc) {
    EXPECT_FALSE(Regex(R"(\w)").is_pcre2());  // it is loaded
    regex_t posix;
    ASSERT_EQ(regcomp(&posix, "^a+$", REG_EXTENDED | REG_NOSUB), 0);
    EXPECT_EQ(regexec(&posix, "aa", 0, nullptr, 0), 0);
    regfree(&posix);
}

TEST(Regex, WhatIsNoPatternOrMatchesNothingIsRefused) {
    std::pair<char const*, char const*> const cases[] = {
        {"*a", "not understood"},    {"(a", "not understood"},
        {"a)", "not understood"},    {"[a", "not understood"},
        {"[b-a]", "not understood"}, {R"(\p{Nothing})", "not understood"},
        {"a\\", "not understood"},   {"a*", "empty"},
        {"(?:)", "empty"},           {R"(\w*)", "empty"},
    };
    for (auto const& [pattern, reason] : cases) {
        EXPECT_THAT(testing::error_of(Category::config, [&, pattern = pattern] { Regex{pattern}; }), HasSubstr(reason))
            << pattern;
    }
    EXPECT_THAT(testing::error_of(Category::config, [] { words("(?=a)", "xa"); }), HasSubstr("empty"));
    std::string const text = fmt::format("{:a<2000}-!", "");
    EXPECT_THAT(testing::error_of(Category::data, [&] { words(R"((?:\w+\w+)+!)", text); }), HasSubstr("2002 bytes"));
}

TEST(Regex, EndlessBacktrackingIsAnErrorOfTheData) {
    std::string const text = fmt::format("{:a<2000}cb", "");
    EXPECT_THAT(testing::error_of(Category::data, [&] { words("(?:a+a+)+b", text); }), HasSubstr("2002 bytes"));
}

TEST(Regex, TimeIsBoundedForATextNotForAMatch) {
    // Each digit begins a search to the end of the text: no match takes long, all together the square of the text.
    for (char const* const pattern :
         {R"(\p{N}(?=\p{N}*\p{Lu}))", R"(\p{N}(?=\p{N}*\p{Lu})|\p{N})", R"(\w(?=\w*\p{Lu})|\w)"}) {
        EXPECT_THAT(testing::error_of(Category::data, [&] { words(pattern, std::string(300'000, '7')); }),
                    ::testing::AllOf(HasSubstr(pattern), HasSubstr("takes too long for a text of 300000 bytes")));
    }
}

TEST(Regex, LongRunsNeedNoStack) {
    std::string const run(3 << 20, ' ');
    EXPECT_EQ(words(kLlama3, run + "x").size(), 2u);
    EXPECT_EQ(words(kLlama3, std::string(3 << 20, 'x')).size(), 1u);
}

}  // namespace
}  // namespace perigee
