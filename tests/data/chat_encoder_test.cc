#include "data/chat_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "marked_tokenizer.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MarkedTokenizer;
using testing::shown;
using Fate = EncodedChat::Fate;

class ChatEncoderTest : public ::testing::Test {
  protected:
    ChatEncoder encoder(ChatOptions const& options, int64_t max_tokens = 10000) const {
        return {options, max_tokens, tokenizer_};
    }

    MarkedTokenizer tokenizer_;
    std::vector<Message> const talk_{
        {"system", "S"}, {"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "b", 0.5}};
};

TEST_F(ChatEncoderTest, ChatMlAsQwenWritesIt) {
    EXPECT_EQ(shown(encoder({.format = ChatFormat::chatml}).encode(talk_)),
              "{1012}system\nS{1010}\n{1012}user\nu{1010}\n{1012}assistant\n[a{1010}]\n{1012}user\nv{1010}\n"
              "{1012}assistant\n[b{1010}]\n");
}

TEST_F(ChatEncoderTest, Llama3AsItsModelCardWritesIt) {
    std::vector<Message> const talk{{"user", " u\n"}, {"assistant", "a "}, {"tool", "t"}};
    EXPECT_EQ(shown(encoder({.format = ChatFormat::llama3}).encode(talk)),
              "{1017}{1019}user{1017}\n\nu{1010}{1019}assistant{1017}\n\n[a{1010}]{1019}ipython{1017}\n\nt{1010}");
}

TEST_F(ChatEncoderTest, Llama3TrimsAsPythonStrips) {
    // Every character that Python's str.isspace() knows, and two that it does not (U+180E, U+200B).
    std::string const blanks =
        "\t\n\v\f\r\x1c\x1d\x1e\x1f \u0085\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000";
    std::string const kept = "\u200bu\u3000v\u180e";
    ChatEncoder const llama3 = encoder({.format = ChatFormat::llama3});
    EXPECT_EQ(llama3.prompt({{"user", blanks + kept + blanks}}), llama3.prompt({{"user", kept}}));
    EXPECT_EQ(llama3.prompt({{"user", blanks}}), llama3.prompt({{"user", ""}}));
}

/// Knows the names of Llama 3 only.
class Llama3Tokenizer : public MarkedTokenizer {
  public:
    std::vector<int32_t> encode_text(std::string_view text, TextAfter after, SpecialNames names) const override {
        return MarkedTokenizer::encode_text(text, after, text.starts_with("<|im_") ? SpecialNames::text : names);
    }
};

TEST_F(ChatEncoderTest, ATemplateOfAnotherTokenizerIsRefusedAndTheOneThatFitsIsNamed) {
    Llama3Tokenizer const tokenizer;
    EXPECT_THAT(error_of(Category::config, [&] { ChatEncoder({.format = ChatFormat::chatml}, 100, tokenizer); }),
                AllOf(HasSubstr("<|im_start|>, <|im_end|>"), HasSubstr("template: llama3 fits")));
    EXPECT_NO_THROW(ChatEncoder({.format = ChatFormat::llama3}, 100, tokenizer));
}

TEST_F(ChatEncoderTest, WithoutATemplateAnswersEndTheDocument) {
    EXPECT_EQ(shown(encoder({}).encode({{"user", "2+2="}, {"assistant", "4"}})), "{999}2+2=[4{256}]");
}

TEST_F(ChatEncoderTest, ATemplateOfOnesOwn) {
    ChatOptions const options{.format = ChatFormat::custom,
                              .begin = "<|b|>",
                              .roles = {{"user", "Q: ", "\n"}, {"assistant", "A: ", ".<|e|>\n\n"}},
                              .stop = "<|e|>"};
    ASSERT_THAT(problems(options), IsEmpty());
    EXPECT_EQ(shown(encoder(options).encode({{"user", "u"}, {"assistant", "a"}})), "{1005}Q: u\nA: [a.{1005}]\n\n");
}

TEST_F(ChatEncoderTest, WhatUsersWriteNeverBecomesASpecialToken) {
    EXPECT_EQ(shown(encoder({.format = ChatFormat::chatml}).encode({{"user", "<|im_end|>"}, {"assistant", "a"}})),
              "{1012}user\n<|im_end|>{1010}\n{1012}assistant\n[a{1010}]\n");
}

TEST_F(ChatEncoderTest, TheBytesTokenizerTakesNamesForText) {
    auto const files = make_file_system();
    auto const bytes = make_tokenizer(*files, "bytes");
    ChatEncoder const chatml({.format = ChatFormat::chatml}, 1000, *bytes);
    EXPECT_EQ(shown(chatml.encode({{"user", "u"}, {"assistant", "a"}})),
              "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n");
    EXPECT_EQ(bytes->decode(chatml.stop()), "<|im_end|>");
}

TEST_F(ChatEncoderTest, LossOnTheLastAnswerOrOnEverything) {
    std::string const head =
        "{1012}system\nS{1010}\n{1012}user\nu{1010}\n{1012}assistant\na{1010}\n{1012}user\nv{1010}\n";
    EXPECT_EQ(shown(encoder({.format = ChatFormat::chatml, .loss = ChatLoss::last}).encode(talk_)),
              head + "{1012}assistant\n[b{1010}]\n");
    EXPECT_EQ(shown(encoder({.format = ChatFormat::chatml, .loss = ChatLoss::all}).encode(talk_)),
              "[" + head + "{1012}assistant\nb{1010}\n]");
}

TEST_F(ChatEncoderTest, WeightsOfMessagesMultiply) {
    auto talk = talk_;
    talk[2].weight = 0;
    talk[1].weight = 9;  // a question: no loss unless everything has
    auto const weights = [&](ChatLoss loss) {
        EncodedChat const chat = encoder({.format = ChatFormat::chatml, .loss = loss}).encode(talk);
        std::map<float, int> count;
        for (float const weight : chat.weights) ++count[weight];
        return count;
    };
    EXPECT_THAT(weights(ChatLoss::assistant), ElementsAre(std::pair(0.0f, 55), std::pair(0.5f, 2)));
    EXPECT_THAT(weights(ChatLoss::all),
                ElementsAre(std::pair(0.0f, 14), std::pair(0.5f, 14), std::pair(1.0f, 20), std::pair(9.0f, 9)));
}

TEST_F(ChatEncoderTest, TooLongIsDroppedCutOrLosesItsOldestTurns) {
    auto const encode = [&](TooLong policy, int64_t max_tokens) {
        return encoder({.format = ChatFormat::chatml, .too_long = policy}, max_tokens).encode(talk_);
    };
    EXPECT_EQ(encode(TooLong::drop, 57).fate, Fate::whole);
    EncodedChat const dropped = encode(TooLong::drop, 56);
    EXPECT_EQ(dropped.fate, Fate::too_long);
    EXPECT_EQ(dropped.full_tokens, 57);
    EXPECT_THAT(dropped.tokens, IsEmpty());
    EXPECT_EQ(encode(TooLong::stop, 56).fate, Fate::too_long);

    EncodedChat const cut = encode(TooLong::cut_end, 33);
    EXPECT_EQ(cut.fate, Fate::shortened);
    EXPECT_EQ(shown(cut), "{1012}system\nS{1010}\n{1012}user\nu{1010}\n{1012}assistant\n[a{1010}]");
    EXPECT_EQ(encode(TooLong::cut_end, 31).fate, Fate::without_loss);

    EncodedChat const rest = encode(TooLong::drop_oldest, 56);
    EXPECT_EQ(rest.fate, Fate::shortened);
    EXPECT_EQ(shown(rest), "{1012}system\nS{1010}\n{1012}user\nv{1010}\n{1012}assistant\n[b{1010}]\n");
    EXPECT_EQ(encode(TooLong::drop_oldest, static_cast<int64_t>(rest.tokens.size())).tokens, rest.tokens);
    EXPECT_EQ(encode(TooLong::drop_oldest, static_cast<int64_t>(rest.tokens.size()) - 1).fate, Fate::too_long);
}

TEST_F(ChatEncoderTest, NothingToLearnFromIsNoDocument) {
    auto const chatml = encoder({.format = ChatFormat::chatml});
    EXPECT_EQ(chatml.encode({{"user", "u"}}).fate, Fate::without_loss);
    EXPECT_EQ(chatml.encode({{"user", "u"}, {"assistant", "a", 0}}).fate, Fate::without_loss);
}

TEST_F(ChatEncoderTest, GenerationBeginsAsTrainingDid) {
    auto const chatml = encoder({.format = ChatFormat::chatml});
    auto prompt = chatml.prompt({{"system", "S"}, {"user", "u"}});
    EncodedChat const trained = chatml.encode({{"system", "S"}, {"user", "u"}, {"assistant", "a"}});
    size_t const first = static_cast<size_t>(std::ranges::find(trained.weights, 1.0f) - trained.weights.begin());
    EXPECT_EQ(prompt, std::vector<int32_t>(trained.tokens.begin(), trained.tokens.begin() + static_cast<long>(first)));
    EXPECT_THAT(chatml.stop(), ElementsAre(1010));
    EXPECT_THAT(encoder({}).stop(), ElementsAre(256));
}

TEST_F(ChatEncoderTest, GenerationRefusesWhatTheTemplateWouldLeaveOut) {
    auto chatml = encoder({.format = ChatFormat::chatml});
    std::string const asks = R"({"messages": [{"role": "user", "content": "u"})";
    for (std::string const more : {R"(], "tools": [{"name": "f"}]})",
                                   R"(, {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]}]})",
                                   R"(, {"role": "assistant", "content": "a", "reasoning_content": "r"}]})"})
        EXPECT_THAT(error_of(Category::data, [&] { chatml.prompt(parse_conversation(asks + more)); }),
                    HasSubstr("is not supported by this template"))
            << more;
    EXPECT_EQ(chatml.prompt(parse_conversation(asks + R"(], "tools": []})")),
              chatml.prompt(std::vector<Message>{{"user", "u"}}));
}

TEST_F(ChatEncoderTest, UnknownRolesAreNamed) {
    EXPECT_THAT(error_of(Category::data,
                         [&] {
                             encoder({.format = ChatFormat::llama3}).encode({{"human", "u"}});
                         }),
                AllOf(HasSubstr("no role \"human\""), HasSubstr("system, user, assistant, tool")));
}

TEST(ChatOptions, ContradictionsAreTold) {
    auto const found = [](ChatOptions const& options) { return problems(options); };
    EXPECT_THAT(found({}), IsEmpty());
    EXPECT_THAT(found({.format = ChatFormat::chatml, .begin = "x"}), ElementsAre(HasSubstr("custom")));
    EXPECT_THAT(found({.format = ChatFormat::custom}), ElementsAre(HasSubstr("none is \"assistant\"")));
    EXPECT_THAT(found({.format = ChatFormat::custom, .roles = {{"assistant", "", "x"}}, .stop = "y"}),
                ElementsAre(HasSubstr("\"y\" is not in the suffix")));
    EXPECT_THAT(found({.format = ChatFormat::custom, .roles = {{"assistant", "", ""}, {"assistant", "", ""}, {}}}),
                ElementsAre(HasSubstr("two of \"assistant\""), HasSubstr("has no name")));
}

}  // namespace
}  // namespace perigee
