// PREFIX.chat.json beside a data set of conversations: the chat template that rendered them, as Jinja, which a trained
// model carries with it; and which documents are of the same conversation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/options.h"
#include "io/file_system.h"

namespace perigee {

struct ChatRecord {
    std::string text;    ///< of the template
    std::string source;  ///< where it came from
    /// A character per document, '1' for one that is of the same conversation as the one before it, else '0'. Empty
    /// where each conversation is one document.
    std::string continued = {};
    std::vector<int32_t> stop = {};  ///< tokens that end an answer, in this order; empty in records that lack them
    bool operator==(ChatRecord const& other) const { return text == other.text; }
};

void write_chat_record(FileSystem& files, Path const& prefix, ChatRecord const& record);
/// Nothing where the data set has none. Throws Category::data where the file is damaged.
std::optional<ChatRecord> read_chat_record(FileSystem& files, Path const& prefix);

/// `continued` of a data set; empty where it says nothing about so many documents.
std::string continued_documents(FileSystem& files, Path const& prefix, int64_t documents);

struct ChatRecords {
    std::optional<ChatRecord> first;  ///< of the training data
    std::string prefix;               ///< its data set
    std::vector<std::string> others;  ///< data sets with another template, those for validation too
};
ChatRecords chat_records_of(FileSystem& files, DataOptions const& options);

}  // namespace perigee
