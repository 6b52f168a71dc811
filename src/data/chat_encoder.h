// Conversations to tokens and loss weights, by a template.
#pragma once

#include <cstdint>
#include <functional>
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

/// What became of a file's lines.
struct ChatCounts {
    int64_t whole = 0;
    int64_t shortened = 0;        ///< too long, and handed out in part
    int64_t too_long = 0;         ///< dropped
    int64_t without_loss = 0;     ///< dropped: no token would have counted
    int64_t malformed = 0;        ///< skipped
    std::string first_malformed;  ///< file:line: reason

    ChatCounts& operator+=(ChatCounts const& other);
};

class ChatEncoder {
  public:
    /// `max_tokens` > 0 holds for every conversation. `tokenizer` outlives the encoder, and several threads may use it.
    /// Throws Category::config where a marker of a built-in template is not one token of a tokenizer that has special
    /// tokens.
    ChatEncoder(ChatOptions const& options, int64_t max_tokens, Tokenizer const& tokenizer);

    /// Text around messages and what is said are encoded apart, so that nothing a user writes becomes a special token,
    /// and an answer begins where generation would begin it. Throws Category::data for roles that the template lacks.
    EncodedChat encode(std::vector<Message> const& messages) const;

    /// What generation begins with: these messages, then the opening of an answer.
    std::vector<int32_t> prompt(std::vector<Message> const& messages) const;
    int64_t max_tokens() const { return max_tokens_; }
    /// The tokens that end an answer.
    std::vector<int32_t> stop() const;

  private:
    struct Piece {
        std::vector<int32_t> before, said, rest;  ///< of an answer, `said` includes what ends it
    };
    Piece piece(Message const& message, TextAfter after) const;
    void check_markers() const;
    TextAfter after(std::vector<int32_t> const& tokens, TextAfter before) const;
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

/// A conversation and the bytes of the file read so far.
using UseChat = std::function<void(EncodedChat const& chat, int64_t bytes_read)>;

/// Calls `use` for every conversation of a JSONL file, plain or gzip. Throws Category::data with file, line and reason
/// where the options say to stop, and for lines over kMaxJsonLineBytes and damaged compression.
ChatCounts for_each_chat(FileSystem& files, Path const& path, ChatOptions const& options, ChatEncoder const& encoder,
                         UseChat const& use);

}  // namespace perigee
