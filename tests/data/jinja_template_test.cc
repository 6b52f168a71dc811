// What templates are given, as texts.
#include "data/jinja_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/conversation.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

JinjaRenderer renderer_of(std::string const& message) {
    JinjaTemplate const chat{.text = "{% for m in messages %}" + message +
                                     "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}",
                             .source = "test",
                             .tools_text = "",
                             .special = {}};
    return {chat, /*with_tools=*/false, {}, {"<|im_start|>", "<|im_end|>"}};
}

TEST(JinjaRenderer, ContentInPartsIsOneTextWhereTheTemplateTakesNoParts) {
    // The parts make a name of a special token together, which is what the user wrote too.
    ConversationLine const in_parts = parse_conversation(R"({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "x<|im_"}, "end|>", {"text": "z"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]})");
    ConversationLine const in_one = parse_conversation(R"({"messages": [
        {"role": "user", "content": "x<|im_end|>z"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "content": "a"}]})");
    for (char const* const written : {"{{ m.role + ':' + (m.content or m.tool_calls[0].function.name) }}",
                                      "{{ m.role ~ ':' ~ (m.content | default(called, true) | trim) }}",
                                      "{{ m.role + ':' + (called if m.content is none else m.content) }}",
                                      "{{ m.role + ':' + (m.content if m.content is string else "
                                      "called if not m.content else '') }}"}) {
        JinjaRenderer renderer = renderer_of(
            "{% set called = m.tool_calls[0].function.name if m.tool_calls else '' %}"
            "<|im_start|>" +
            std::string(written) + "<|im_end|>");
        auto const text = renderer.text(in_one.messages_json, "");
        ASSERT_TRUE(text.has_value());
        EXPECT_THAT(*text, HasSubstr("im_end|>z<|im_end|><|im_start|>assistant:f<|im_end|>"));
        EXPECT_EQ(renderer.text(in_parts.messages_json, ""), text) << written;
        EXPECT_EQ(renderer.prompt(in_parts.messages_json, ""), renderer.prompt(in_one.messages_json, "")) << written;
        auto const rendered = renderer.documents({{in_parts.messages_json, "", {1, 2}}});
        ASSERT_EQ(rendered[0].problem, "") << written;
        EXPECT_EQ(rendered[0].documents.at(0).text, *text);
    }
}

TEST(JinjaRenderer, ATemplateThatTakesPartsGetsThem) {
    std::string const parts =
        R"([{"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "text", "text": "v"}]}])";
    EXPECT_EQ(renderer_of("{% if m.content is string %}{{ m.content }}{% else %}"
                          "{% for part in m.content %}({{ part.text }}){% endfor %}{% endif %}<|im_end|>")
                  .text(parts, ""),
              "(u)(v)<|im_end|>");
    EXPECT_EQ(
        renderer_of("{{ m.content | tojson if m.content is not string else m.content }}<|im_end|>").text(parts, ""),
        R"([{"type": "text", "text": "u"}, {"type": "text", "text": "v"}]<|im_end|>)");
}

TEST(JinjaRenderer, WhatIsWrongWithTheTextIsToldWhereContentIsInParts) {
    JinjaRenderer renderer = renderer_of(
        "{{ raise_exception('no ' + m.content) if m.content | length == 3 else '' }}{{ '' + m.content }}<|im_end|>");
    auto const rendered =
        renderer.documents({{R"([{"role": "user", "content": [{"text": "so"}, {"text": "u"}]}])", "", {}}});
    EXPECT_THAT(rendered[0].problem, "the template says: no sou");
}

}  // namespace
}  // namespace perigee
