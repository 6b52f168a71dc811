// Conversations to tokens and loss weights, by the Jinja template of a tokenizer folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/chat_encoder.h"
#include "data/jinja_template.h"

namespace perigee {

class JinjaEncoder : public ConversationEncoder {
  public:
    /// Throws Category::config where a marker that the template writes, or what ends its answers, is not one token of a
    /// tokenizer that has special tokens.
    JinjaEncoder(JinjaTemplate chat, ChatOptions options, int64_t max_tokens, Tokenizer const& tokenizer,
                 std::chrono::milliseconds patience = JinjaRenderer::kPatience);

    /// The tokens are those of the whole text, names of special tokens that the template writes being those tokens. Of
    /// an answer, the tokens carry loss that the text up to its beginning does not have.
    std::vector<EncodedConversation> encode_all(std::vector<ConversationLine> const& lines) override;
    std::vector<int32_t> prompt(ConversationLine const& line) override;
    std::vector<int32_t> stop() const override;
    int64_t max_tokens() const override { return max_tokens_; }
    std::string template_text() const override { return chat_.text; }

  private:
    void check_markers();
    bool is_spelled(std::string const& name) const { return tokenizer_->encode_with_special(name).size() != 1; }
    std::string spelled_marker() const;
    /// Of what belongs to no answer.
    float weight_around() const { return options_.loss == ChatLoss::all ? 1 : 0; }
    JinjaRenderer& renderer(bool tools);
    JinjaRenderer::Request request(ConversationLine const& line) const;
    std::vector<JinjaRenderer::Rendered> render(std::vector<ConversationLine> const& lines);
    void realign(std::string_view text, std::vector<JinjaRenderer::Answer> const& answers,
                 std::vector<Message> const& messages, EncodedChat& chat) const;
    EncodedChat encode(JinjaRenderer::Document const& document, std::vector<Message> const& messages) const;
    EncodedChat fitted(EncodedChat chat, ConversationLine const& line, JinjaRenderer::Document const& document);
    std::string problem_of(ConversationLine const& line, JinjaRenderer::Rendered const& rendered) const;
    EncodedChat without_oldest(EncodedChat chat, ConversationLine const& line, JinjaRenderer::Document const& document);

    JinjaTemplate chat_;
    ChatOptions options_;
    int64_t max_tokens_;
    Tokenizer const* tokenizer_;
    std::chrono::milliseconds patience_;
    std::unique_ptr<JinjaRenderer> renderer_, tools_renderer_;  ///< the second of a template for tools alone
};

}  // namespace perigee
