// PREFIX.chat.json beside a data set of conversations: the chat template that rendered them, as Jinja, which a trained
// model carries with it.
#pragma once

#include <optional>
#include <string>

#include "data/options.h"
#include "io/file_system.h"

namespace perigee {

struct ChatRecord {
    std::string text;    ///< of the template
    std::string source;  ///< where it came from
    bool operator==(ChatRecord const& other) const { return text == other.text; }
};

void write_chat_record(FileSystem& files, Path const& prefix, ChatRecord const& record);
/// Nothing where the data set has none. Throws Category::data where the file is damaged.
std::optional<ChatRecord> read_chat_record(FileSystem& files, Path const& prefix);

/// That of the training data; of several different ones the first, and `others` becomes true.
std::optional<ChatRecord> chat_record_of(FileSystem& files, DataOptions const& options, bool& others);

}  // namespace perigee
