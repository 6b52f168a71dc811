// A conversation and its form as a line of JSON: {"messages": [{"role": ..., "content": ..., "weight": ...}, ...]}, or
// {"prompt": ..., "completion": ...} for one question and its answer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee {

struct Message {
    std::string role;
    std::string content;
    double weight = 1;  ///< of its loss, relative to the other messages'
    bool operator==(Message const&) const = default;
};

/// What a line holds, or what is wrong with it.
struct ConversationLine {
    std::vector<Message> messages;
    std::string problem;  ///< empty where all is well
};

inline constexpr double kLargestMessageWeight = 1e6;

/// Trusts nothing: malformed or deeply nested JSON, wrong types, repeated keys, weights out of range and what cannot be
/// taught from (tool calls, reasoning beside the content, content that is no text) are problems. Other keys are left
/// alone. Memory is bounded by a few times the line.
ConversationLine parse_conversation(std::string_view line);

}  // namespace perigee
