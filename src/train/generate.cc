#include "train/generate.h"

#include <algorithm>

#include "base/log.h"
#include "data/chat_encoder.h"
#include "data/jinja_template.h"
#include "data/packing.h"
#include "eval/sampling.h"
#include "train/text_model.h"

namespace perigee {

namespace {

/// The template in use; null where there is none.
std::unique_ptr<ConversationEncoder> chat_of(Session& session, Tokenizer const& tokenizer) {
    RunOptions const& options = session.options();
    ChatOptions const chat = resolved(session.files(), options.data.tokenizer, options.chat);
    if (chat.format == ChatFormat::none) return nullptr;
    return make_conversation_encoder(session.files(), chat, options.data.tokenizer,
                                     options.model.max_position_embeddings, tokenizer);
}

void warn_of_other_template(ConversationEncoder const& chat, RunState const& state) {
    auto const trained = state.info.find(RunState::kChatTemplate);
    if (trained != state.info.end() && trained->second != chat.template_text())
        log::warn(
            "the model was trained with another chat template than the one in use here: its answers may suffer. "
            "`convert` writes the one of training");
}

/// What the model is given to go on from.
std::vector<int32_t> opening(RunOptions const& options, Tokenizer const& tokenizer, ConversationEncoder* chat) {
    if (chat == nullptr) {
        std::vector<int32_t> ids = tokenizer.prefix();
        std::ranges::copy(tokenizer.encode_with_special(options.generate.prompt), std::back_inserter(ids));
        return ids;
    }
    std::vector<Message> messages;
    if (!options.generate.system.empty()) messages.push_back({kInstructs, options.generate.system});
    messages.push_back({kAsks, options.generate.prompt});
    return chat->prompt(conversation_line(messages));
}

/// Holds tokens back as long as they may be the beginning of what ends an answer.
class Ending {
  public:
    Ending(std::vector<int32_t> stop, std::function<void(int32_t)> release)
        : stop_(std::move(stop)), release_(std::move(release)) {}

    /// True when the end is complete.
    bool push(int32_t id) {
        held_.push_back(id);
        while (!std::equal(held_.begin(), held_.end(), stop_.begin())) release_first();
        return held_.size() == stop_.size();
    }
    void release_all() {
        while (!held_.empty()) release_first();
    }

  private:
    void release_first() {
        release_(held_.front());
        held_.erase(held_.begin());
    }

    std::vector<int32_t> stop_, held_;
    std::function<void(int32_t)> release_;
};

}  // namespace

bool has_chat_template(Session& session) {
    RunOptions const& options = session.options();
    return resolved(session.files(), options.data.tokenizer, options.chat).format != ChatFormat::none;
}

void generate(Session& session, RunState const& state, std::function<void(std::string const&)> const& sink) {
    RunOptions const& options = session.options();
    auto const tokenizer = make_tokenizer(session.files(), options.data.tokenizer);
    check_vocabulary(*tokenizer, options.model.vocab_size);
    auto const chat = chat_of(session, *tokenizer);
    if (chat) warn_of_other_template(*chat, state);
    std::vector<int32_t> ids = opening(options, *tokenizer, chat.get());
    StreamDecoder stream(*tokenizer);
    Ending ending(chat ? chat->stop() : std::vector{tokenizer->end_of_document()},
                  [&](int32_t id) { sink(stream.push(id)); });
    if (ids.empty()) fail(Category::config, "generate.prompt is empty: at least one token is needed to go on from");
    int64_t const most = options.model.max_position_embeddings;
    TextModel model(session, session.selections(state.step));
    Philox const random(static_cast<uint64_t>(options.seed), Purpose::generate);
    for (int64_t i = 0; i < options.generate.max_tokens; ++i) {
        if (std::ssize(model.text()) + std::ssize(ids) >= most) break;
        int32_t const next = sample_token(model.append(ids), tokenizer->vocab_size(), options.generate, random, i);
        if (ending.push(next)) return sink(stream.finish());
        ids = {next};
    }
    ending.release_all();
    sink(stream.finish());
}

}  // namespace perigee
