// `perigee tokenize --chat CONFIG`: conversations, by the chat section of a run's configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace perigee {

struct ChatInputs {
    std::string config;                    ///< path of the YAML file
    std::optional<std::string> tokenizer;  ///< instead of data.tokenizer
    std::vector<std::string> overrides;    ///< "key=value"
    std::vector<Path> files;               ///< JSONL, plain or compressed, and Parquet
    Path output;                           ///< prefix
    double seconds = 10;                   ///< between lines of progress, and between states to go on from
};

/// Writes the tokens of all conversations and, beside them, their loss weights, the template and which tokenizer made
/// them; prints what became of them. A run that was killed is gone on with.
void tokenize_chats(ChatInputs const& inputs, FileSystem& files);

}  // namespace perigee
