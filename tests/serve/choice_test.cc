// The text of an answer, piece by piece: what stop texts cut, and what is held back meanwhile.
#include "serve/choice.h"

#include <gtest/gtest.h>

#include "base/philox.h"
#include "data/tokenizer/unicode.h"

namespace perigee::serve {

namespace {

std::string cut(std::string const& text, std::vector<std::string> const& stops) {
    size_t end = text.size();
    for (std::string const& stop : stops) end = std::min(end, text.find(stop));
    return text.substr(0, end);
}

TEST(StopTexts, CutAtTheFirstThatIsComplete) {
    Philox const random(31, Purpose::mock_data);
    uint64_t next = 0;
    auto const letters = [&](uint64_t most) {
        std::string text;
        for (uint64_t i = random.below(next++, most) + 1; i > 0; --i)
            text += static_cast<char>('a' + random.below(next++, 2));
        return text;
    };
    int64_t found = 0;
    for (int i = 0; i < 3000; ++i) {
        std::vector<std::string> stops;
        for (uint64_t n = random.below(next++, 3); n > 0; --n) stops.push_back(letters(6) + "a");
        std::string const text = letters(30);
        StopTexts cutter(stops);
        std::string shown, seen;
        while (seen.size() < text.size() && !cutter.found()) {
            std::string const piece = text.substr(seen.size(), 1 + random.below(next++, 5));
            seen += piece;
            shown += cutter.push(piece);
            ASSERT_TRUE(cut(seen, stops).starts_with(shown)) << seen << ": " << shown;
            ASSERT_EQ(cutter.found(), cut(seen, stops) != seen) << seen;
        }
        if (!cutter.found()) shown += cutter.finish();
        ASSERT_EQ(shown, cut(seen, stops)) << seen;
        found += cutter.found();
    }
    EXPECT_GT(found, 500);
}

TEST(StopTexts, HoldBackNoMoreThanTheBeginningOfOne) {
    StopTexts cutter({"END"});
    EXPECT_EQ(cutter.push("one E"), "one ");
    EXPECT_EQ(cutter.push("N"), "");
    EXPECT_EQ(cutter.push("x"), "ENx");
    EXPECT_EQ(cutter.push("EEN"), "E");
    EXPECT_EQ(cutter.finish(), "EN");
}

class Choices : public ::testing::Test {
  protected:
    std::unique_ptr<FileSystem> files = make_file_system();
    std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(*files, "bytes");
    ServedRequest request{
        .prompts = {{{'h', 'i'}, "hi"}}, .sampling = {}, .max_tokens = 10, .end = {'!', '?'}, .logprobs = 1};

    static void write(Choice& choice, std::string const& text) {
        for (char const c : text)
            choice.add({.id = static_cast<unsigned char>(c), .logprob = -1, .top = {{'x', -1}}, .finish = {}});
    }
};

TEST_F(Choices, EndAtTheIdsOfTheTemplate) {
    Choice choice(request, request.prompts[0], *tokenizer);
    write(choice, "a!b!");
    EXPECT_EQ(choice.take_text(), "a!b");
    EXPECT_FALSE(choice.finish());
    write(choice, "?after");
    EXPECT_EQ(choice.finish(), Finish::stop);
    EXPECT_EQ(choice.take_text(), "");
    EXPECT_EQ(choice.tokens(), 5);
    auto const tokens = choice.take_tokens();
    ASSERT_EQ(tokens.size(), 5u);
    EXPECT_EQ(tokens[4].text, "?");
    EXPECT_EQ(tokens[4].offset, 4);
}

TEST_F(Choices, AtTheirEndShowWhatWasHeldBack) {
    request.stop = {"bcd"};
    Choice choice(request, request.prompts[0], *tokenizer);
    write(choice, "abc!");
    EXPECT_EQ(choice.take_text(), "a");
    choice.end(Finish::length);
    EXPECT_EQ(choice.take_text(), "bc!");
    EXPECT_EQ(choice.finish(), Finish::length);
}

TEST_F(Choices, OffsetsCountCharacters) {
    request.echo = true;
    request.prompts[0] = {{0xC3, 0xA9, 'x'}, "\xC3\xA9x"};
    Choice choice(request, request.prompts[0], *tokenizer);
    choice.add(PromptScores{.logprobs = {-2, -3}, .top = {{{1, -1}}, {{2, -1}}, {{3, -1}}}});
    write(choice, "\xC3\xA9y");
    EXPECT_EQ(choice.take_text(), "\xC3\xA9x\xC3\xA9y");
    std::vector<int64_t> offsets;
    for (ReportedToken const& token : choice.take_tokens()) offsets.push_back(token.offset);
    EXPECT_EQ(offsets, (std::vector<int64_t>{0, 0, 1, 2, 2, 3}));
}

TEST_F(Choices, OffsetsCountTheNamesOfSpecialTokensThatThePromptHas) {
    constexpr int32_t kEnd = 256;
    request.echo = true;
    request.prompts[0] = {
        .ids = {kEnd, kEnd, 'x'}, .text = "<|endoftext|>x", .names_from = 1};  // the first is a prefix
    Choice choice(request, request.prompts[0], *tokenizer);
    choice.add(PromptScores{.logprobs = {-2, -3}, .top = {{{1, -1}}, {{2, -1}}, {{3, -1}}}});
    EXPECT_EQ(choice.take_text(), "<|endoftext|>x");
    std::vector<int64_t> offsets;
    for (ReportedToken const& token : choice.take_tokens()) offsets.push_back(token.offset);
    EXPECT_EQ(offsets, (std::vector<int64_t>{0, 0, 13}));
}

std::vector<int64_t> offsets_of(Choice& choice) {
    std::vector<int64_t> offsets;
    for (ReportedToken const& token : choice.take_tokens()) offsets.push_back(token.offset);
    return offsets;
}

TEST_F(Choices, OffsetsCountTheReplacementOfBrokenBytes) {
    Choice broken(request, request.prompts[0], *tokenizer);
    write(broken, "a\xE2\x82z\xF0\x9F\xC3\xA9y");
    EXPECT_EQ(offsets_of(broken), (std::vector<int64_t>{0, 1, 1, 2, 3, 3, 4, 4, 5}));
    EXPECT_EQ(broken.take_text(), "a\xEF\xBF\xBDz\xEF\xBF\xBD\xC3\xA9y");
}

TEST_F(Choices, OffsetsAreThoseOfTheTextWhateverItsBytes) {
    Philox const random(32, Purpose::mock_data);
    constexpr std::string_view kBytes = "az\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF";
    uint64_t next = 0;
    for (int i = 0; i < 300; ++i) {
        std::string text;
        for (int n = 0; n < 12; ++n) text += kBytes[random.below(next++, kBytes.size())];
        Choice choice(request, request.prompts[0], *tokenizer);
        write(choice, text);
        // The character that a byte is part of: as many begin in all bytes up to it, less one.
        std::vector<int64_t> expected;
        for (size_t at = 0, begun = 0; at < text.size();
             begun += utf8::first(std::string_view(text).substr(begun)).bytes)
            for (size_t const end = begun + utf8::first(std::string_view(text).substr(begun)).bytes; at < end; ++at)
                expected.push_back(expected.empty() ? 0 : expected.back() + (at == begun ? 1 : 0));
        ASSERT_EQ(offsets_of(choice), expected) << ::testing::PrintToString(text);
    }
}

TEST_F(Choices, NoAnswerCompletesACharacterOfTheirPrompt) {
    request.echo = true;
    request.prompts[0] = {{0xE2, 0x82}, "\xEF\xBF\xBD"};
    Choice choice(request, request.prompts[0], *tokenizer);
    choice.add(PromptScores{.logprobs = {-2}, .top = {{{1, -1}}, {{2, -1}}}});
    write(choice, "\xACz");
    EXPECT_EQ(choice.take_text(), "\xEF\xBF\xBD\xEF\xBF\xBDz");
    EXPECT_EQ(offsets_of(choice), (std::vector<int64_t>{0, 0, 1, 2}));
}

}  // namespace

}  // namespace perigee::serve
