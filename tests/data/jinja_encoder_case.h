// Conversations rendered by Jinja templates and encoded by a tiny tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/jinja_encoder.h"
#include "megatron_files.h"
#include "support/tiny_tokenizer.h"

namespace perigee {

// Tools, reasoning that only answers after the last question keep, results of tools in one turn, a macro, a loop that
// goes on, trim, and blocks on lines of their own.
inline constexpr char kAgent[] = R"({%- macro head(role) -%}
    {{ '<|im_start|>' + role + '\n' }}
{%- endmacro -%}
{%- if tools %}
    {{- head('system') }}
    {%- for tool in tools %}
        {{- tool | tojson + '\n' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- head('tool') + message.content + '<|im_end|>\n' }}
        {%- continue %}
    {%- endif %}
    {{- head(message.role) }}
    {%- if message.role == 'assistant' %}
        {%- if loop.index0 > ns.last and message.reasoning_content %}
            {{- '<think>' + message.reasoning_content | trim + '</think>' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {{- '{"call": ' + call.function | tojson + '}' }}
        {%- endfor %}
    {%- elif message.content is string %}
        {{- message.content | trim }}
    {%- else %}
        {%- for part in message.content if part.type == 'text' %}
            {{- part.text }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- head('assistant') }}
{%- endif %})";

inline constexpr char kPlain[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

class JinjaEncoderTest : public ::testing::Test {
  protected:
    JinjaEncoderTest() {
        testing::TinyTokenizer tiny;
        tiny.added_tokens = nlohmann::json::array({added(300, "<|im_start|>"), added(301, "<|im_end|>"),
                                                   added(302, "<|eos|>"), added(303, "<end_of_turn>"),
                                                   added(304, "[/TURN]"), added(305, "<|\"|>"), added(306, "ENDTURN"),
                                                   added(307, "<|say|>", /*rstrip=*/true), added(308, "<think>")})
                                .dump();
        std::filesystem::create_directory(folder());
        testing::write_bytes(folder() / "tokenizer.json", tiny.json());
        use(nlohmann::json(kAgent));
        tokenizer_ = make_tokenizer(*files_, folder().string());
    }
    static nlohmann::json added(int id, std::string const& name, bool rstrip = false) {
        return {{"id", id},        {"content", name},  {"special", true},    {"single_word", false},
                {"lstrip", false}, {"rstrip", rstrip}, {"normalized", false}};
    }
    Path folder() const { return home_ / "tokenizer"; }
    /// Makes it the folder's template.
    void use(nlohmann::json const& chat_template) {
        testing::write_bytes(folder() / "tokenizer_config.json", nlohmann::json{{"chat_template", chat_template},
                                                                                {"bos_token", "<begin>"},
                                                                                {"eos_token", {{"content", "<|eos|>"}}}}
                                                                     .dump());
    }
    std::unique_ptr<ConversationEncoder> encoder(ChatOptions const& options = {}, int64_t max_tokens = 10000) const {
        return make_conversation_encoder(*files_, options, folder().string(), max_tokens, *tokenizer_);
    }
    /// The text of tokens, what carries loss in [ ].
    std::string shown(EncodedChat const& chat) const {
        std::string text;
        bool inside = false;
        for (size_t i = 0; i < chat.tokens.size(); ++i) {
            if ((chat.weights[i] > 0) != inside) text += (inside = !inside) ? "[" : "]";
            text += tokenizer_->piece(chat.tokens[i]);
        }
        return text + (inside ? "]" : "");
    }
    std::vector<std::string> documents(std::string const& line, ChatOptions const& options = {}) const {
        ConversationLine const read = parse_conversation(line);
        EXPECT_EQ(read.problem, "");
        EncodedConversation const encoded = encoder(options)->encode_all({read})[0];
        if (!encoded.problem.empty()) return {"problem: " + encoded.problem};
        std::vector<std::string> all;
        for (EncodedChat const& chat : encoded.documents) all.push_back(shown(chat));
        return all;
    }

    testing::TemporaryFolder home_;
    std::unique_ptr<FileSystem> files_ = make_file_system();
    std::unique_ptr<Tokenizer> tokenizer_;
    std::string const talk_ =
        R"({"messages": [{"role": "user", "content": " u "}, {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"}, {"role": "assistant", "content": "b", "reasoning_content": "r"}]})";
};

}  // namespace perigee
