// A conversation with kept keys and values: the answers are those of the whole conversation read anew.
#include "train/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"
#include "data/chat_encoder.h"
#include "support/ragged_samples.h"
#include "support/thread_comm.h"

namespace perigee::testing {

namespace {

struct Conversations {
    explicit Conversations(HostComm& world, std::string const& more = "chat: {template: chatml}")
        : files(make_file_system()),
          session(parse_config(R"(
model: {vocab_size: 257, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 2, max_position_embeddings: 700}
attention: {kind: moba, block_size: 16, top_k: 3, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 100}
generate: {max_tokens: 20, temperature: 0.9, system: Be brief.}
device: cpu
threads: 1
)" + more,
                               "chat", {}),
                  world, *files) {
        std::vector<float> const weights = weights_of(session.layout(), 0.4);
        session.ops().upload(session.weights().flat(), weights.data());
    }
    std::unique_ptr<FileSystem> files;
    Session session;
};

void ignore(std::string const&) {}
bool always() { return true; }

/// The answer to the last message, by one text from nothing.
std::string answered_anew(Conversations& job, std::vector<Message> messages, int64_t number) {
    PromptEncoder const encoder(job.session, {});
    auto const ids = encoder.encode(conversation_line(messages));
    TextModel model(job.session, job.session.selections(0));
    auto const& options = job.session.options();
    Sampler sampler(options.generate, options.seed + number, 257);
    std::vector<int32_t> added = ids, answer;
    for (int64_t i = 0; i < options.generate.max_tokens; ++i) {
        answer.push_back(sampler.draw(model.append(added)));
        added = {answer.back()};
        if (answer.size() >= encoder.stop().size() &&
            std::equal(encoder.stop().begin(), encoder.stop().end(), answer.end() - std::ssize(encoder.stop()))) {
            answer.resize(answer.size() - encoder.stop().size());
            break;
        }
    }
    StreamDecoder stream(encoder.tokenizer());
    std::string text;
    for (int32_t const id : answer) text += stream.push(id);
    return text + stream.finish();
}

TEST(Conversation, EachAnswerCostsNewTokensOnly) {
    auto const world = make_single_host_comm();
    Conversations job(*world);
    Conversation conversation(job.session, {});
    std::vector<Message> said = {{kInstructs, "Be brief."}};
    int64_t before = 0, number = 0;
    for (std::string const message : {"Hello there", "and then?", "why", "\xc3\xa9t\xc3\xa9"}) {
        said.push_back({kAsks, message});
        std::string streamed;
        auto const reply = conversation.answer(
            message, [&](std::string const& text) { streamed += text; }, always);
        EXPECT_EQ(streamed, reply.text);
        EXPECT_EQ(reply.text, answered_anew(job, said, number++));
        EXPECT_GE(reply.kept_tokens, before);
        EXPECT_GT(reply.prompt_tokens, reply.kept_tokens);
        before = reply.prompt_tokens;
        said.push_back({kAnswers, reply.text});
    }
    conversation.forget();
    auto const first = conversation.answer("Hello there", ignore, always);
    EXPECT_LT(first.prompt_tokens, before);
}

TEST(Conversation, AnInterruptedAnswerStaysInTheConversation) {
    auto const world = make_single_host_comm();
    Conversations job(*world);
    Conversation conversation(job.session, {});
    int64_t left = 5;
    auto const reply = conversation.answer("Hello", ignore, [&] { return left-- > 0; });
    EXPECT_FALSE(reply.text.empty());
    auto const next = conversation.answer("go on", ignore, always);
    EXPECT_EQ(
        next.text,
        answered_anew(job, {{kInstructs, "Be brief."}, {kAsks, "Hello"}, {kAnswers, reply.text}, {kAsks, "go on"}}, 1));
}

TEST(Conversation, AMessageTooLongIsNotSaid) {
    auto const world = make_single_host_comm();
    Conversations job(*world);
    Conversation conversation(job.session, {});
    EXPECT_THROW(conversation.answer(std::string(800, 'x'), ignore, always), Error);
    EXPECT_EQ(conversation.answer("Hi", ignore, always).text,
              answered_anew(job, {{kInstructs, "Be brief."}, {kAsks, "Hi"}}, 0));
    // The context ends within an answer.
    auto const reply = conversation.answer(std::string(490, 'y'), ignore, always);
    EXPECT_LE(reply.prompt_tokens + 20, 701);
}

TEST(Conversation, NeedsATemplate) {
    auto const world = make_single_host_comm();
    Conversations job(*world, "chat: {template: none}");
    try {
        Conversation conversation(job.session, {});
        ADD_FAILURE() << "accepted";
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::config);
        EXPECT_THAT(error.what(), ::testing::HasSubstr("chat template"));
    }
}

}  // namespace

}  // namespace perigee::testing
