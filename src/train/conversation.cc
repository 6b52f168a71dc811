#include "train/conversation.h"

#include <algorithm>

#include "eval/sampling.h"
#include "train/ending.h"

namespace perigee {

Conversation::Conversation(Session& session, RunState const& state)
    : session_(session), encoder_(session, state), model_(session, session.selections(state.step)) {
    if (!encoder_.chats())
        fail(Category::config,
             "a conversation needs a chat template: chat.template is none, or it is auto and data.tokenizer ({}) "
             "brings none",
             session.options().data.tokenizer);
    forget();
}

void Conversation::forget() {
    messages_.clear();
    std::string const& system = session_.options().generate.system;
    if (!system.empty()) messages_.push_back({kInstructs, system});
}

std::vector<int32_t> Conversation::prompt(std::string const& message) {
    int64_t const most = session_.options().model.max_position_embeddings;
    messages_.push_back({kAsks, message});
    try {
        auto ids = encoder_.encode(conversation_line(messages_));
        if (std::ssize(ids) >= most)
            fail(Category::data, "the conversation has {} tokens, and the model takes {}", ids.size(), most);
        return ids;
    } catch (...) {
        messages_.pop_back();
        throw;
    }
}

Conversation::Reply Conversation::answer(std::string const& message,
                                         std::function<void(std::string const&)> const& sink,
                                         std::function<bool()> const& go_on) {
    RunOptions const& options = session_.options();
    std::vector<int32_t> ids = prompt(message);
    auto const same = std::ranges::mismatch(ids, model_.text()).in1 - ids.begin();
    Reply reply{.text = {}, .prompt_tokens = std::ssize(ids), .kept_tokens = std::min(same, std::ssize(ids) - 1)};
    model_.keep(reply.kept_tokens);
    Sampler sampler(options.generate, options.seed + answers_++, encoder_.tokenizer().vocab_size());
    sampler.see(ids);
    StreamDecoder stream(encoder_.tokenizer());
    auto const say = [&](std::string const& text) {
        reply.text += text;
        sink(text);
    };
    Ending ending(encoder_.stop(), [&](int32_t id) { say(stream.push(id)); });
    ids.erase(ids.begin(), ids.begin() + reply.kept_tokens);
    bool ended = false;
    for (int64_t i = 0; i < options.generate.max_tokens && !ended && go_on(); ++i) {
        if (std::ssize(model_.text()) + std::ssize(ids) >= options.model.max_position_embeddings) break;
        int32_t const next = model_.draw(ids, sampler);
        ended = ending.push(next);
        ids = {next};
    }
    if (!ended) ending.release_all();
    say(stream.finish());
    messages_.push_back({kAnswers, reply.text});
    return reply;
}

}  // namespace perigee
