#include "data/chat_record.h"

#include <nlohmann/json.hpp>

#include "data/dataset_files.h"

namespace perigee {

namespace {

constexpr int64_t kMaxBytes = int64_t{32} << 20;

Path path_of(Path const& prefix) { return prefix.string() + kChatRecordExtension; }

}  // namespace

void write_chat_record(FileSystem& files, Path const& prefix, ChatRecord const& record) {
    nlohmann::ordered_json const json{{"template", record.text}, {"source", record.source}};
    files.replace_text(path_of(prefix), json.dump(1) + "\n");
}

std::optional<ChatRecord> read_chat_record(FileSystem& files, Path const& prefix) {
    Path const path = path_of(prefix);
    if (!files.exists(path)) return std::nullopt;
    auto const json = nlohmann::json::parse(files.read_text(path, kMaxBytes), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("template") || !json["template"].is_string())
        fail(Category::data, "{}: expected an object with a \"template\"", path.string());
    return ChatRecord{json["template"], json.value("source", "")};
}

std::optional<ChatRecord> chat_record_of(FileSystem& files, DataOptions const& options, bool& others) {
    std::optional<ChatRecord> found;
    if (options.mock_data) return found;
    for (DatasetOptions const& dataset : options.train) {
        auto record = read_chat_record(files, dataset.path);
        if (!record) continue;
        if (!found)
            found = std::move(record);
        else
            others = others || *found != *record;
    }
    return found;
}

}  // namespace perigee
