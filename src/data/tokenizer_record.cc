#include "data/tokenizer_record.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "data/dataset_files.h"
#include "data/options.h"
#include "io/sha256.h"

namespace perigee {

namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 20;

struct TokenizerRecord {
    std::string name;
    int64_t vocab_size = 0;
    std::string pieces;  ///< their hash
    int64_t tokens = 0;
};

Path path_of(Path const& prefix) { return prefix.string() + kTokenizerRecordExtension; }

/// Of the first `count` ids.
std::string hash_of_pieces(Tokenizer const& tokenizer, int64_t count) {
    Sha256 hash;
    for (int64_t id = 0; id < count; ++id) {
        std::string const piece = tokenizer.piece(static_cast<int32_t>(id));
        uint64_t const size = piece.size();
        hash.update(std::as_bytes(std::span(&size, 1)));
        hash.update(std::as_bytes(std::span(piece)));
    }
    return hash.finish();
}

std::optional<TokenizerRecord> read_record(FileSystem& files, Path const& prefix) {
    Path const path = path_of(prefix);
    if (!files.exists(path)) return std::nullopt;
    auto const json = nlohmann::json::parse(files.read_text(path, kMaxBytes), nullptr, /*allow_exceptions=*/false);
    auto const has = [&](char const* key, bool number) {
        return json.is_object() && json.contains(key) &&
               (number ? json[key].is_number_unsigned() : json[key].is_string());
    };
    if (!has("tokenizer", false) || !has("pieces", false) || !has("vocab_size", true) || !has("tokens", true))
        fail(Category::data, "{}: expected an object with \"tokenizer\", \"vocab_size\", \"pieces\" and \"tokens\"",
             path.string());
    return TokenizerRecord{json["tokenizer"], json["vocab_size"], json["pieces"], json["tokens"]};
}

}  // namespace

void write_tokenizer_record(FileSystem& files, Path const& prefix, Tokenizer const& tokenizer, std::string const& name,
                            int64_t tokens) {
    int64_t const size = tokenizer.vocab_size();
    nlohmann::ordered_json const json{
        {"tokenizer", name}, {"vocab_size", size}, {"pieces", hash_of_pieces(tokenizer, size)}, {"tokens", tokens}};
    files.replace_text(path_of(prefix),
                       json.dump(1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) + "\n");
}

void TokenizerCheck::check(IndexedDataset const& data) {
    auto const record = read_record(files_, data.prefix());
    if (!record || record->tokens != data.tokens()) return;
    if (!tokenizer_) tokenizer_ = make_tokenizer(files_, name_);
    int64_t const size = tokenizer_->vocab_size();
    if (record->vocab_size <= size && hash_of_pieces(*tokenizer_, record->vocab_size) == record->pieces) return;
    bool const is_chat = files_.exists(data.prefix().string() + kChatRecordExtension);
    if (name_ == DataOptions{}.tokenizer && !is_chat) {
        if (!std::exchange(told_, true))  // info: rank 0 alone says it
            log::info(
                "warning: data.tokenizer is {}; {} was tokenized with {}: set data.tokenizer={} to read and write its "
                "text",
                name_, data.prefix().string(), record->name, record->name);
        return;
    }
    fail(Category::config,
         "{}: tokenized with {} ({} tokens), but data.tokenizer is {} ({} tokens), in which the ids stand for other "
         "text. Set data.tokenizer to the tokenizer of the data, or tokenize them anew. ({} says so; without this file "
         "nothing is checked.)",
         data.prefix().string(), record->name, record->vocab_size, name_, size, path_of(data.prefix()).string());
}

}  // namespace perigee
