#include "train/prompt_encoder.h"

#include <algorithm>

#include "base/log.h"
#include "data/jinja_template.h"

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

}  // namespace

PromptEncoder::PromptEncoder(Session& session, RunState const& state)
    : tokenizer_(make_tokenizer(session.files(), session.options().data.tokenizer)) {
    check_vocabulary(*tokenizer_, session.options().model.vocab_size);
    chat_ = chat_of(session, *tokenizer_);
    if (chat_) warn_of_other_template(*chat_, state);
    stop_ = chat_ ? chat_->stop() : std::vector{tokenizer_->end_of_document()};
}

std::vector<int32_t> PromptEncoder::encode(std::string const& system, std::string const& prompt) const {
    if (chat_) {
        std::vector<Message> messages;
        if (!system.empty()) messages.push_back({kInstructs, system});
        messages.push_back({kAsks, prompt});
        return chat_->prompt(conversation_line(messages));
    }
    if (!system.empty())
        fail(Category::config,
             "a system message (generate.system) needs a chat template, and there is none (chat.template)");
    std::vector<int32_t> ids = encode(prompt);
    if (ids.empty()) fail(Category::config, "generate.prompt is empty: at least one token is needed to go on from");
    return ids;
}

std::vector<int32_t> PromptEncoder::encode(std::string const& text) const {
    std::vector<int32_t> ids = tokenizer_->prefix();
    std::ranges::copy(tokenizer_->encode_with_special(text), std::back_inserter(ids));
    return ids;
}

}  // namespace perigee
