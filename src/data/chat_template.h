// What a conversation looks like to the model, and which of its tokens count: options and templates of chat data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"
#include "data/conversation.h"

namespace perigee {

/// The text around what one role says. Names of special tokens in it become special tokens.
struct ChatRole {
    std::string role;
    std::string prefix;
    std::string suffix;
};
void describe(Schema& schema, ChatRole& options);

/// automatic: the tokenizer folder's own Jinja template where it has one, else none.
enum class ChatFormat { automatic, none, chatml, llama3, custom };
enum class ChatLoss { assistant, last, all };
enum class TooLong { drop, drop_oldest, cut_end, stop };
enum class Malformed { stop, skip };
/// What becomes of answers that the template writes otherwise once other messages follow.
enum class Rewritten { split, no_loss };

/// What a Jinja template is given.
struct JinjaOptions {
    std::string file = {};         ///< instead of the folder's template
    std::string name = {};         ///< of several in the folder
    std::string arguments = "{}";  ///< a JSON object
    std::string date = {};         ///< YYYY-MM-DD; empty: today
    Rewritten rewritten = Rewritten::split;
};
void describe(Schema& schema, JinjaOptions& options);
std::vector<std::string> problems(JinjaOptions const& options);

struct ChatOptions {
    ChatFormat format = ChatFormat::automatic;
    std::string begin = {};            ///< custom: before the first message
    std::vector<ChatRole> roles = {};  ///< custom
    std::string stop = {};             ///< custom: what ends an answer
    ChatLoss loss = ChatLoss::assistant;
    int64_t max_tokens = 0;  ///< 0: what a sample holds, data.sequence_length + 1
    TooLong too_long = TooLong::drop;
    Malformed malformed = Malformed::stop;
    RecordFormat records = RecordFormat::automatic;
    JinjaOptions jinja = {};
};
void describe(Schema& schema, ChatOptions& options);
std::vector<std::string> problems(ChatOptions const& options);

inline constexpr char kAnswers[] = "assistant";  ///< the role that the model plays
inline constexpr char kInstructs[] = "system";   ///< the role whose leading messages hold for the whole conversation
inline constexpr char kAsks[] = "user";
inline constexpr char kGivesResults[] = "tool";

/// A template of roles in use. An answer ends with `stop`, which the suffix of its role holds, or, where `stop` is
/// empty, with the tokenizer's end of a document after it.
struct ChatTemplate {
    std::string begin;
    bool tokenizer_prefix = false;  ///< begin with whatever the tokenizer puts before documents
    bool trim = false;              ///< white space around what is said is dropped
    std::vector<ChatRole> roles;
    std::string stop;
};

/// Sources: ChatML as in the chat templates of Qwen2 and Qwen3 without tools, Llama 3 as in the model card of
/// Llama 3.1 ("ipython" is its name for tool results).
ChatTemplate chat_template(ChatOptions const& options);

/// The same as a Jinja template, for Hugging Face folders.
std::string as_jinja(ChatTemplate const& chat);

}  // namespace perigee
