#include "data/chat_record.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "data/dataset_files.h"

namespace perigee {

namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;

Path path_of(Path const& prefix) { return prefix.string() + kChatRecordExtension; }

}  // namespace

void write_chat_record(FileSystem& files, Path const& prefix, ChatRecord const& record) {
    nlohmann::ordered_json json{{"template", record.text}, {"source", record.source}};
    if (!record.continued.empty()) json["continued"] = record.continued;
    if (!record.stop.empty()) json["stop"] = record.stop;
    files.replace_text(path_of(prefix), json.dump(1) + "\n");
}

std::optional<ChatRecord> read_chat_record(FileSystem& files, Path const& prefix) {
    Path const path = path_of(prefix);
    if (!files.exists(path)) return std::nullopt;
    auto const json = nlohmann::json::parse(files.read_text(path, kMaxBytes), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("template") || !json["template"].is_string())
        fail(Category::data, "{}: expected an object with a \"template\"", path.string());
    if (json.contains("continued") && !json["continued"].is_string())
        fail(Category::data, "{}: \"continued\" must be a text", path.string());
    ChatRecord record{json["template"], json.value("source", ""), json.value("continued", "")};
    auto const stop = json.value("stop", nlohmann::json::array());
    for (auto const& id : stop) {
        if (!stop.is_array() || !id.is_number_unsigned() || id > std::numeric_limits<int32_t>::max())
            fail(Category::data, "{}: \"stop\" must be a list of tokens", path.string());
        record.stop.push_back(id);
    }
    return record;
}

std::string continued_documents(FileSystem& files, Path const& prefix, int64_t documents) {
    auto record = read_chat_record(files, prefix);
    if (!record || std::ssize(record->continued) != documents) return "";
    return std::move(record->continued);
}

ChatRecords chat_records_of(FileSystem& files, DataOptions const& options) {
    ChatRecords found;
    if (options.mock_data) return found;
    for (auto const* const list : {&options.train, &options.validation})
        for (DatasetOptions const& dataset : *list) {
            auto record = read_chat_record(files, dataset.path);
            if (!record) continue;
            if (found.first && *found.first != *record) found.others.push_back(dataset.path);
            if (found.first || list == &options.validation) continue;
            found.first = std::move(record);
            found.prefix = dataset.path;
        }
    return found;
}

}  // namespace perigee
