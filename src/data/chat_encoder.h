// Conversations to tokens and loss weights, by a template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "data/conversation.h"
#include "data/tokenizer.h"
#include "io/file_system.h"

namespace perigee {

struct EncodedChat {
    enum class Fate { whole, shortened, too_long, without_loss };
    Fate fate = Fate::whole;
    int64_t full_tokens = 0;      ///< of the whole conversation
    std::vector<int32_t> tokens;  ///< empty where it is too long or no token would count
    std::vector<float> weights;   ///< per token, how much it counts as a target
};

/// What a conversation becomes, or why nothing.
struct EncodedConversation {
    std::string problem;                 ///< empty where all is well
    std::vector<EncodedChat> documents;  ///< one, or more where a Jinja template writes earlier answers otherwise
    int64_t rewritten = 0;               ///< answers that it wrote otherwise in the whole conversation
    int64_t without_reasoning = 0;       ///< answers whose reasoning it left out
};

/// By one template or another. One thread at a time.
class ConversationEncoder {
  public:
    virtual ~ConversationEncoder() = default;
    /// In the order given. `lines` have no problem of their own.
    virtual std::vector<EncodedConversation> encode_all(std::vector<ConversationLine> const& lines) = 0;
    /// What generation begins with: these messages, then the opening of an answer. Throws Category::data where the
    /// template cannot write them.
    virtual std::vector<int32_t> prompt(ConversationLine const& line) = 0;
    /// The tokens that end an answer.
    virtual std::vector<int32_t> stop() const = 0;
    virtual int64_t max_tokens() const = 0;
    /// The template as Jinja writes it; empty where there is none.
    virtual std::string template_text() const = 0;
};

/// By what options.format says; `tokenizer_name` is where `tokenizer` was read from, and `max_tokens` > 0 holds for
/// every document. Throws Category::config where the template is none or does not fit the tokenizer.
std::unique_ptr<ConversationEncoder> make_conversation_encoder(FileSystem& files, ChatOptions const& options,
                                                               std::string const& tokenizer_name, int64_t max_tokens,
                                                               Tokenizer const& tokenizer);

/// The messages as a line that a file could have held.
ConversationLine conversation_line(std::vector<Message> const& messages);

/// What a text after `tokens` follows. `before` is what `tokens` follow.
TextAfter text_after(Tokenizer const& tokenizer, std::vector<int32_t> const& tokens, TextAfter before);

/// Whether any token but the first has a positive weight. The first token is never a target.
bool carries_loss(EncodedChat const& chat);

/// Whether an answer counts in the loss as `options` say.
bool counts_in_loss(ChatOptions const& options, std::vector<Message> const& messages, size_t index);

/// By templates of roles.
class ChatEncoder : public ConversationEncoder {
  public:
    /// `max_tokens` > 0 holds for every conversation. `tokenizer` outlives the encoder, and several threads may use it.
    /// Throws Category::config where a marker of a built-in template is not one token of a tokenizer that has special
    /// tokens.
    ChatEncoder(ChatOptions const& options, int64_t max_tokens, Tokenizer const& tokenizer);

    /// Text around messages and what is said are encoded apart, so that nothing a user writes becomes a special token,
    /// and an answer begins where generation would begin it. Throws Category::data for roles that the template lacks.
    EncodedChat encode(std::vector<Message> const& messages) const;

    std::vector<EncodedConversation> encode_all(std::vector<ConversationLine> const& lines) override;

    std::vector<int32_t> prompt(std::vector<Message> const& messages) const;
    std::vector<int32_t> prompt(ConversationLine const& line) override;
    int64_t max_tokens() const override { return max_tokens_; }
    std::vector<int32_t> stop() const override;
    std::string template_text() const override;

  private:
    struct Piece {
        std::vector<int32_t> before, said, rest;  ///< of an answer, `said` includes what ends it
    };
    Piece piece(Message const& message, TextAfter after) const;
    void check_markers() const;
    TextAfter after_begin() const;
    ChatRole const& role(std::string const& name) const;
    std::vector<int32_t> begin() const;
    float weight_of(std::vector<Message> const& messages, size_t index) const;
    EncodedChat encode_message(std::vector<Message> const& messages, size_t index, TextAfter after) const;
    /// The first of the messages after `kept` that stays so that no more than max_tokens_ do.
    size_t first_that_fits(std::vector<Message> const& messages, std::vector<EncodedChat> const& encoded, size_t kept,
                           int64_t tokens) const;

    ChatOptions options_;
    ChatTemplate template_;
    int64_t max_tokens_;
    Tokenizer const* tokenizer_;
};

}  // namespace perigee
