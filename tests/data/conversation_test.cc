#include "data/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Conversation, ReadsMessagesAndLeavesOtherKeysAlone) {
    auto const line = parse_conversation(
        R"({"id": 7, "meta": {"messages": [1], "prompt": {"role": 2}, "n": [[null]]},
            "messages": [{"role": "system", "content": "S", "name": "x", "extra": {"content": 5}},
                         {"content": "h\u00e9", "role": "user", "weight": 2},
                         {"role": "assistant", "content": "", "weight": 0.25, "tool_calls": null}], "after": [{}]})");
    EXPECT_EQ(line.problem, "");
    EXPECT_THAT(line.messages,
                ElementsAre(Message{"system", "S"}, Message{"user", "h\xc3\xa9", 2}, Message{"assistant", "", 0.25}));
}

TEST(Conversation, APromptAndItsCompletionAreAQuestionAndItsAnswer) {
    auto const line = parse_conversation(R"({"completion": "b", "prompt": "a"})");
    EXPECT_THAT(line.messages, ElementsAre(Message{"user", "a"}, Message{"assistant", "b"}));
}

TEST(Conversation, EmptyReasoningIsNone) {
    auto const line = parse_conversation(
        R"({"messages": [{"role": "user", "content": "u", "reasoning_content": null},
                         {"role": "assistant", "content": "a", "reasoning_content": ""}]})");
    EXPECT_EQ(line.problem, "");
}

TEST(Conversation, EveryMistakeHasItsReason) {
    std::string const deep(101, '[');
    for (auto const& [text, reason] : std::vector<std::pair<std::string, std::string>>{
             {"", "malformed JSON"},
             {"nonsense", "malformed JSON"},
             {"{} {}", "malformed JSON at byte 4"},
             {R"({"messages": [{"role": "user", "content": "a)", "malformed JSON"},
             {"{\"prompt\": \"\xff\", \"completion\": \"\"}", "UTF-8"},
             {"[]", "an array, where an object is expected"},
             {"3", "a number, where an object is expected"},
             {"\"x\"", "a text, where an object is expected"},
             {"{}", "neither \"messages\" nor \"prompt\""},
             {R"({"messages": []})", "no messages"},
             {R"({"messages": "x"})", "\"messages\" is a text, where a list is expected"},
             {R"({"messages": {}})", "\"messages\" is an object, where a list is expected"},
             {R"({"messages": [[]]})", "an array follows, where an object is expected"},
             {R"({"messages": [{"role": "user", "content": "a"}, "b"]})", "message 1: a text follows"},
             {R"({"messages": [{"role": "user"}]})", "message 1: no \"content\""},
             {R"({"messages": [{"content": "x"}]})", "message 1: no \"role\""},
             {R"({"messages": [{"role": "user", "content": "x"}, {"role": 5, "content": "x"}]})",
              "message 2: \"role\" is a number, where text is expected"},
             {R"({"messages": [{"role": "user", "content": null}]})", "\"content\" is null, where text is expected"},
             {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "\"content\" is an array"},
             {R"({"messages": [{"role": "user", "content": "x", "content": "y"}]})", "two \"content\""},
             {R"({"messages": [], "messages": []})", "two \"messages\""},
             {R"({"messages": [{"role": "user", "content": "x", "weight": -1}]})", "\"weight\" is -1"},
             {R"({"messages": [{"role": "user", "content": "x", "weight": 1e7}]})", "between 0 and 1000000"},
             {R"({"messages": [{"role": "user", "content": "x", "weight": "1"}]})", "\"weight\" is a text"},
             {R"({"messages": [{"role": "user", "content": "x", "weight": 1e999}]})", "malformed JSON"},
             {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]})", "not supported"},
             {R"({"messages": [{"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}]})",
              "\"reasoning_content\" is not supported"},
             {R"({"messages": [{"role": "assistant", "content": "4", "reasoning": ["2 + 2"]}]})",
              "\"reasoning\" is not"},
             {R"({"prompt": "a"})", "\"prompt\" without \"completion\""},
             {R"({"completion": "a"})", "\"completion\" without \"prompt\""},
             {R"({"prompt": "a", "completion": ["b"]})", "\"completion\" is an array, where text is expected"},
             {R"({"prompt": "a", "completion": "b", "messages": [{"role": "user", "content": "x"}]})", "both"},
             {"{\"x\": " + deep, "nested more than 100 deep"}}) {
        auto const line = parse_conversation(text);
        EXPECT_THAT(line.problem, HasSubstr(reason)) << text;
        EXPECT_TRUE(line.messages.empty()) << text;
    }
}

}  // namespace
}  // namespace perigee
