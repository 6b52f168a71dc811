// Files of conversations to documents of tokens and loss weights.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "data/chat_encoder.h"
#include "io/file_system.h"

namespace perigee {

/// What became of a file's lines.
struct ChatCounts {
    int64_t whole = 0;                 ///< documents
    int64_t shortened = 0;             ///< too long, and handed out in part
    int64_t too_long = 0;              ///< dropped
    int64_t without_loss = 0;          ///< dropped: no token would have counted
    int64_t malformed = 0;             ///< lines skipped
    int64_t rewritten = 0;             ///< answers that the template wrote otherwise in the whole conversation
    int64_t without_reasoning = 0;     ///< answers whose reasoning the template left out
    int64_t conversations = 0;         ///< lines that were read
    std::array<int64_t, 5> formats{};  ///< of these, by RecordFormat
    std::string first_malformed;       ///< file:line: reason
    /// Some of the roles of conversations that were dropped without loss and have no message of the model's role.
    std::set<std::string> unanswered_roles = {};

    ChatCounts& operator+=(ChatCounts const& other);
};

/// A document, and how far its file is read: lines or rows, and bytes. A place to go on from follows the last document
/// of a line only.
struct ChatPlace {
    int64_t records = 0;  ///< read so far, blank lines included
    int64_t bytes = 0;
    bool is_end = true;                  ///< nothing more comes of these records
    bool continues = false;              ///< the document before it is of the same conversation
    ChatCounts const* counts = nullptr;  ///< of these records
};
using UseChat = std::function<void(EncodedChat const& chat, ChatPlace const& place)>;

/// Calls `use` for every document of a JSONL file, plain or compressed, or of a Parquet file, from record `skip` on.
/// Throws Category::data with file, line and reason where the options say to stop, and for lines over kMaxJsonLineBytes
/// and damaged compression.
ChatCounts for_each_chat(FileSystem& files, Path const& path, ChatOptions const& options, ConversationEncoder& encoder,
                         UseChat const& use, int64_t skip = 0);

}  // namespace perigee
