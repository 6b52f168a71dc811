// `perigee tokenize --chat CONFIG`: conversations, by the chat section of a run's configuration.
#pragma once

#include <string>
#include <vector>

#include "io/file_system.h"

namespace perigee {

struct ChatInputs {
    std::string config;                  ///< path of the YAML file
    std::vector<std::string> overrides;  ///< "key=value"
    std::vector<Path> files;             ///< JSONL, plain or .gz
    Path output;                         ///< prefix
};

/// Writes the tokens of all conversations and, beside them, their loss weights; prints what became of them.
void tokenize_chats(ChatInputs const& inputs, FileSystem& files);

}  // namespace perigee
