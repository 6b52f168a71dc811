#include "data/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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
             {std::string("{}\0{}", 5), "malformed JSON at byte 3: a NUL character"},
             {R"({"messages": [{"role": "user", "content": "x"}], "tools": "[]\u0000[]"})", "byte 3: a NUL character"},
             {R"({"messages": [{"role": "user", "content": "a)", "malformed JSON"},
             {"{\"prompt\": \"\xff\", \"completion\": \"\"}", "UTF-8"},
             {R"({"x": {"a": 1, "a": 2}})", "two \"a\" in one object"},
             {"[]", "an array, where an object is expected"},
             {"3", "a number, where an object is expected"},
             {"\"x\"", "a text, where an object is expected"},
             {"{}", "neither \"messages\" nor \"prompt\""},
             {R"({"messages": []})", "no messages"},
             {R"({"messages": "x"})", "\"messages\" is a text, where a list is expected"},
             {R"({"messages": {}})", "\"messages\" is an object, where a list is expected"},
             {R"({"messages": [[]]})", "an array follows, where an object is expected"},
             {R"({"messages": [{"role": "user", "content": "a"}, "b"]})", "message 2: a text follows"},
             {R"({"messages": [{"role": "user"}]})", "message 1: no \"content\""},
             {R"({"messages": [{"content": "x"}]})", "message 1: no \"role\""},
             {R"({"messages": [{"role": "user", "content": "x"}, {"role": 5, "content": "x"}]})",
              "message 2: \"role\" is a number, where text is expected"},
             {R"({"messages": [{"role": "user", "content": null}]})", "\"content\" is null, where text is expected"},
             {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
              "part 1 of \"content\" has no \"text\""},
             {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}]})",
              "message 1: part 2 of \"content\" is \"image\", where text is expected"},
             {R"({"messages": [{"role": "user", "content": {"a": 1}}]})", "\"content\" is an object, where text"},
             {R"({"messages": [{"role": "user", "content": "x"}], "tools": "no list"})", "\"tools\": malformed JSON"},
             {R"({"messages": [{"role": "user", "content": "x", "content": "y"}]})", "two \"content\""},
             {R"({"messages": [], "messages": []})", "two \"messages\""},
             {R"({"messages": [{"role": "user", "content": "x", "weight": -1}]})", "\"weight\" is -1"},
             {R"({"messages": [{"role": "user", "content": "x", "weight": 1e7}]})", "between 0 and 1000000"},
             {R"({"messages": [{"role": "user", "content": "x", "weight": "1"}]})", "\"weight\" is a text"},
             {R"({"messages": [{"role": "user", "content": "x", "weight": 1e999}]})", "malformed JSON"},
             {R"({"chosen": [], "rejected": []})", "preferences between answers are not supported"},
             {R"({"conversations": [{"from": "human"}]})", "turn 1: no \"value\""},
             {R"({"conversations": [{"from": "narrator", "value": "x"}]})", "turn 1: \"from\" is \"narrator\""},
             {R"({"conversations": [{"from": "function_call", "value": "x"}]})", "\"value\": malformed JSON"},
             {R"({"instruction": "a"})", "no \"output\""},
             {R"({"instruction": "a", "output": "b", "history": ["c"]})", "\"history\" must be a list of pairs"},
             {R"({"prompt": [], "completion": []})", "no messages"},
             {R"({"prompt": "a"})", "\"prompt\" without \"completion\""},
             {R"({"completion": "a"})", "\"completion\" without \"prompt\""},
             {R"({"prompt": "a", "completion": ["b"]})", "message 2: a text follows, where an object"},
             {R"({"prompt": "a", "completion": 5})", "\"completion\" is a number, where text is expected"},
             {R"({"prompt": "a", "completion": "b", "messages": [{"role": "user", "content": "x"}]})",
              "both \"messages\" and \"prompt\" or \"completion\": chat.records says"},
             {"{\"x\": " + deep, "nested more than 100 deep"}}) {
        auto const line = parse_conversation(text);
        EXPECT_THAT(line.problem, HasSubstr(reason)) << text;
        EXPECT_TRUE(line.messages.empty()) << text;
    }
}

TEST(Conversation, NothingIsLostInSilence) {
    for (auto const& [text, reason] : std::vector<std::pair<std::string, std::string>>{
             {R"({"messages": [{"role": "user", "content": "x"}], "tools": "{}"})",
              "\"tools\" is an object, where a list"},
             {R"({"messages": [{"role": "user", "content": "x"}], "tools": ")" + std::string(100000, '[') + "\"}",
              "\"tools\": nested more than"},
             {R"({"messages": [{"role": "assistant", "content": "x", "n": 1000000000000000000001}]})",
              "1000000000000000000001 is a whole number of more than 64 bits"},
             {R"({"messages": [{"role": "user", "content": "x"}], "tools": "[-9223372036854775809]"})",
              "\"tools\": -9223372036854775809 is a whole number"},
             {R"({"instruction": "a", "output": "b", "system": ["c"]})", "\"system\" is an array, where text"},
             {R"({"conversations": [], "system": 5})", "\"system\" is a number, where text"},
             {R"({"instruction": "a", "output": "b", "history": {"c": "d"}})",
              "\"history\" is an object, where a list"}}) {
        EXPECT_THAT(parse_conversation(text).problem, HasSubstr(reason)) << text.substr(0, 200);
    }
    EXPECT_EQ(parse_conversation(R"({"id": 1000000000000000000001, "prompt": "a", "completion": "b"})").problem, "");
}

/// Messages as "role: content", those without loss in brackets.
std::vector<std::string> said(ConversationLine const& line) {
    std::vector<std::string> all;
    for (Message const& message : line.messages)
        all.push_back(
            fmt::format(fmt::runtime(message.weight > 0 ? "{}: {}" : "[{}: {}]"), message.role, message.content));
    return all;
}

TEST(Conversation, ShareGptTurnsAreMessages) {
    auto const line = parse_conversation(
        R"({"system": "S", "tools": "[{\"name\": \"f\"}]", "conversations": [{"from": "human", "value": "u"},
            {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
            {"from": "observation", "value": "r"}, {"from": "gpt", "value": "a", "weight": 0}]})");
    EXPECT_EQ(line.problem, "");
    EXPECT_EQ(line.format, RecordFormat::sharegpt);
    EXPECT_THAT(said(line), ElementsAre("system: S", "user: u", "assistant: ", "tool: r", "[assistant: a]"));
    EXPECT_EQ(line.tools_json, R"([{"name":"f"}])");
    EXPECT_THAT(line.messages_json,
                HasSubstr(R"("tool_calls":[{"type":"function","function":{"name":"f","arguments":{}}}])"));
}

TEST(Conversation, TrainFalseIsWeightZero) {
    auto const line = parse_conversation(
        R"({"messages": [{"role": "user", "content": "u", "train": true}, {"role": "assistant", "content": "a", "train": false},
            {"role": "assistant", "content": "b", "train": true}, {"role": "assistant", "content": "c", "training": false},
            {"role": "assistant", "content": "d", "train": true, "weight": 2}]})");
    EXPECT_EQ(line.problem, "");
    EXPECT_THAT(line.messages,
                ElementsAre(Message{"user", "u"}, Message{"assistant", "a", 0}, Message{"assistant", "b"},
                            Message{"assistant", "c", 0}, Message{"assistant", "d", 2}));
    EXPECT_THAT(line.messages_json, Not(HasSubstr("train"))) << "a template does not see it";
    EXPECT_THAT(said(parse_conversation(R"({"conversations": [{"from": "human", "value": "u"},
                    {"from": "gpt", "value": "a", "train": false}, {"from": "gpt", "value": "b"}]})")),
                ElementsAre("user: u", "[assistant: a]", "assistant: b"));
}

TEST(Conversation, TrainIsTrueOrFalseAndAgreesWithTheWeight) {
    for (auto const& [text, reason] : std::vector<std::pair<std::string, std::string>>{
             {R"({"messages": [{"role": "user", "content": "x", "train": 0}]})",
              "\"train\" is a number, where true or false is expected"},
             {R"({"messages": [{"role": "assistant", "content": "x", "train": false, "weight": 0.5}]})",
              "\"train\" is false, but \"weight\" is 0.5"},
             {R"({"messages": [{"role": "assistant", "content": "x", "training": true, "weight": 0}]})",
              "\"training\" is true, but \"weight\" is 0"},
             {R"({"messages": [{"role": "assistant", "content": "x", "train": true, "training": false}]})",
              "both \"train\" and \"training\": keep one"}})
        EXPECT_THAT(parse_conversation(text).problem, HasSubstr(reason)) << text;
}

TEST(Conversation, AKeyThatIsNullIsNotThere) {
    EXPECT_THAT(said(parse_conversation(R"({"prompt": null, "messages": [{"role": "user", "content": "u"}]})")),
                ElementsAre("user: u"));
    EXPECT_THAT(said(parse_conversation(R"({"messages": null, "conversations": [{"from": "human", "value": "u"}]})")),
                ElementsAre("user: u"));
}

TEST(Conversation, MessagesUnderShareGptsKeyAreMessages) {
    EXPECT_THAT(said(parse_conversation(R"({"conversations": [{"role": "user", "content": "u"}]})")),
                ElementsAre("user: u"));
}

TEST(Conversation, AlpacaIsAQuestionAndItsAnswer) {
    EXPECT_THAT(said(parse_conversation(R"({"instruction": "do", "input": "x", "output": "y", "system": "S",
                                            "history": [["q", "r"]]})")),
                ElementsAre("system: S", "user: q", "assistant: r", "user: do\nx", "assistant: y"));
    EXPECT_THAT(said(parse_conversation(R"({"instruction": "do", "input": "", "output": "y"})")),
                ElementsAre("user: do", "assistant: y"));
}

TEST(Conversation, OfAPromptOfMessagesOnlyTheCompletionIsTaught) {
    auto const line = parse_conversation(
        R"({"prompt": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "shown"},
                       {"role": "user", "content": "v"}], "completion": [{"role": "assistant", "content": "a"}]})");
    EXPECT_THAT(said(line), ElementsAre("user: u", "[assistant: shown]", "user: v", "assistant: a"));
}

TEST(Conversation, AKeyDecidesWhatItsLinesAre) {
    std::string const both = R"({"instruction": "i", "output": "o", "messages": [{"role": "user", "content": "m"}]})";
    EXPECT_THAT(said(parse_conversation(both)), ElementsAre("user: m"));
    EXPECT_THAT(said(parse_conversation(both, RecordFormat::alpaca)), ElementsAre("user: i", "assistant: o"));
    EXPECT_THAT(parse_conversation(both, RecordFormat::sharegpt).problem, HasSubstr("no \"conversations\""));
}

TEST(Conversation, WhatOnlyAJinjaTemplateCanWriteIsToldAndKept) {
    auto const line = parse_conversation(
        R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"z": 1, "a": 2}]},
            {"role": "assistant", "content": "4", "reasoning_content": "2 + 2", "weight": 2}]})");
    EXPECT_EQ(line.problem, "");
    EXPECT_THAT(said(line), ElementsAre("user: ab", "assistant: ", "assistant: 4"));
    EXPECT_EQ(line.only_jinja, "message 2: \"tool_calls\"");
    EXPECT_EQ(line.messages_json,
              R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
              R"({"role":"assistant","content":null,"tool_calls":[{"z":1,"a":2}]},)"
              R"({"role":"assistant","content":"4","reasoning_content":"2 + 2"}])");
}

}  // namespace
}  // namespace perigee
