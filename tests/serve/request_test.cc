// Requests from JSON: fields of OpenAI's API that have no effect here, and rules between fields.
#include "serve/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"

namespace perigee::serve {

namespace {

using ::testing::HasSubstr;

class Requests : public ::testing::Test {
  protected:
    ServedRequest read(Endpoint endpoint, std::string const& fields) {
        return reader_.read(endpoint, endpoint == Endpoint::chat
                                          ? R"({"messages": [{"role": "user", "content": "hi"}])" + fields + "}"
                                          : R"({"prompt": "hi")" + fields + "}");
    }
    /// The message of the refusal.
    std::string refused(Endpoint endpoint, std::string const& fields) {
        try {
            read(endpoint, fields);
        } catch (Refusal const& refusal) {
            EXPECT_EQ(refusal.status, 400);
            return refusal.message;
        }
        return "accepted";
    }

    std::unique_ptr<FileSystem> files_ = make_file_system();
    std::unique_ptr<HostComm> alone_ = make_single_host_comm();
    Session session_{parse_config(R"(
model: {vocab_size: 257, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1,
        num_key_value_heads: 1, max_position_embeddings: 64}
attention: {kind: full}
data: {mock_data: true, sequence_length: 32}
chat: {template: chatml}
device: cpu
threads: 1
)",
                                  "requests", {}),
                     *alone_, *files_};
    PromptEncoder encoder_{session_, {}};
    RequestReader reader_{encoder_, {}, 1, {.text_tokens = 64, .texts = 8}};
};

TEST_F(Requests, MayHaveFieldsWhoseValueHasNoEffect) {
    for (char const* const field : {R"("response_format": {"type": "text"})",
                                    R"("parallel_tool_calls": true)",
                                    R"("parallel_tool_calls": false)",
                                    R"("tool_choice": "none")",
                                    R"("tool_choice": "auto")",
                                    R"("tools": [])",
                                    R"("tools": [], "tool_choice": "none")",
                                    R"("functions": [])",
                                    R"("function_call": "none")",
                                    R"("service_tier": "auto")",
                                    R"("ignore_eos": false)",
                                    R"("store": false)",
                                    R"("metadata": null)",
                                    R"("metadata": {"a": "b"})",
                                    R"("user": "me")",
                                    R"("presence_penalty": 0.0)",
                                    R"("frequency_penalty": 0)",
                                    R"("logit_bias": {})",
                                    R"("best_of": 1)",
                                    R"("echo": false)",
                                    R"("modalities": ["text"])",
                                    R"("min_tokens": 0)",
                                    R"("length_penalty": 1.0)",
                                    R"("stop_token_ids": [])",
                                    R"("unheard_of": null)"})
        for (Endpoint const endpoint : {Endpoint::completions, Endpoint::chat})
            EXPECT_EQ(refused(endpoint, std::string(", ") + field), "accepted") << field;
}

TEST_F(Requests, AreRefusedForFieldsThatWouldHaveAnEffect) {
    for (auto const& [name, value] : {std::pair{"response_format", R"({"type": "json_object"})"},
                                      {"tool_choice", R"("required")"},
                                      {"function_call", R"({"name": "f"})"},
                                      {"functions", R"([{"name": "f"}])"},
                                      {"ignore_eos", "true"},
                                      {"store", "true"},
                                      {"presence_penalty", "0.5"},
                                      {"modalities", R"(["text", "audio"])"},
                                      {"stop_token_ids", "[3]"},
                                      {"temprature", "1"}})
        for (Endpoint const endpoint : {Endpoint::completions, Endpoint::chat})
            EXPECT_THAT(refused(endpoint, fmt::format(R"(, "{}": {})", name, value)),
                        HasSubstr(fmt::format("\"{}\" with the value", name)));
    std::string const tools = R"(, "tools": [{"type": "function", "function": {"name": "f"}}])";
    EXPECT_THAT(refused(Endpoint::completions, tools), HasSubstr("\"tools\" with the value"));
    EXPECT_THAT(refused(Endpoint::chat, tools + R"(, "tool_choice": "none")"), HasSubstr("tool_choice is \"none\""));
}

TEST_F(Requests, ForTheLikeliestTokensOfAChatAskForLogprobs) {
    std::string const refusal = "top_logprobs is 2, but logprobs is not true";
    EXPECT_EQ(refused(Endpoint::chat, R"(, "top_logprobs": 2)"), refusal);
    EXPECT_EQ(refused(Endpoint::chat, R"(, "top_logprobs": 2, "logprobs": false)"), refusal);
    EXPECT_EQ(refused(Endpoint::chat, R"(, "logprobs": null, "top_logprobs": 2)"), refusal);
    EXPECT_EQ(read(Endpoint::chat, R"(, "top_logprobs": 2, "logprobs": true)").logprobs, 2);
    EXPECT_EQ(read(Endpoint::chat, R"(, "logprobs": true)").logprobs, 0);
    EXPECT_FALSE(read(Endpoint::chat, R"(, "top_logprobs": 0)").logprobs);
}

TEST_F(Requests, SayThatANumberIsTooLarge) {
    EXPECT_THAT(refused(Endpoint::completions, R"(, "temperature": 1e400)"), HasSubstr("out of range"));
    EXPECT_THAT(refused(Endpoint::completions, R"(, "temperature": 1e4x)"), HasSubstr("not JSON at byte"));
}

}  // namespace

}  // namespace perigee::serve
