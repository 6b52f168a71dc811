// Prompts to tokens: plain text that is continued, or with a chat template what a user says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/chat_encoder.h"
#include "train/session.h"

namespace perigee {

class PromptEncoder {
  public:
    /// With the tokenizer and template of the session's options. Warns where the checkpoint of `state` was trained with
    /// another template. Throws Category::config where the tokenizer knows ids that the model does not.
    PromptEncoder(Session& session, RunState const& state);

    Tokenizer const& tokenizer() const { return *tokenizer_; }
    /// Ids that end a document or answer, one after the other.
    std::vector<int32_t> const& stop() const { return stop_; }
    bool chats() const { return chat_ != nullptr; }
    /// What the model goes on from. `system` needs a template. Throws Category::config for no tokens.
    std::vector<int32_t> encode(std::string const& system, std::string const& prompt) const;
    /// Text that is continued, whether there is a template or not; maybe no token.
    std::vector<int32_t> encode(std::string const& text) const;
    /// A conversation that is answered: needs a template. Throws Category::data where that cannot write it.
    std::vector<int32_t> encode(ConversationLine const& line) const { return chat_->prompt(line); }

  private:
    std::unique_ptr<Tokenizer> tokenizer_;
    std::unique_ptr<ConversationEncoder> chat_;  ///< or none
    std::vector<int32_t> stop_;
};

}  // namespace perigee
