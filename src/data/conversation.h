// A conversation and its forms as a line of JSON. docs/sft.md has the table of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee {

struct Message {
    std::string role;
    std::string content;  ///< its text; of content parts, their texts one after the other
    double weight = 1;    ///< of its loss, relative to the other messages'
    bool operator==(Message const&) const = default;
};

/// How a line says what was said; automatic: told by its keys.
enum class RecordFormat { automatic, messages, prompt_completion, sharegpt, alpaca };
char const* to_string(RecordFormat format);

/// What a line holds, or what is wrong with it.
struct ConversationLine {
    std::vector<Message> messages;
    std::string problem;                            ///< empty where all is well
    std::string only_jinja;                         ///< what only a Jinja template can write, if anything
    std::string messages_json;                      ///< the messages as a Jinja template is given them, a list
    std::string tools_json;                         ///< the same of tools; empty where there are none
    RecordFormat format = RecordFormat::automatic;  ///< what it was
};

inline constexpr double kLargestMessageWeight = 1e6;

/// Trusts nothing: malformed or deeply nested JSON, wrong types, repeated keys, weights out of range and content that
/// is no text are problems. "train": false is a weight of 0. Other keys of the line are left alone, those of messages
/// are the template's. Memory is bounded by some times the line.
ConversationLine parse_conversation(std::string_view line, RecordFormat format = RecordFormat::automatic);

}  // namespace perigee
