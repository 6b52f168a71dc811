#include "commands/tokenize/journal.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/dataset_files.h"
#include "data/tokenizer.h"
#include "io/sha256.h"

namespace perigee {

namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30, kEndBytes = int64_t{64} << 10;

void add(Sha256& hash, std::string const& text) { hash.update(std::as_bytes(std::span(text))); }

void add_file(Sha256& hash, FileSystem& files, Path const& path, int64_t end_bytes) {
    auto const file = files.open(path);
    int64_t const size = file->size();
    add(hash, fmt::format("{}\n{}\n", path.string(), size));
    std::string bytes(static_cast<size_t>(std::min(size, end_bytes)), '\0');
    for (int64_t const at : {int64_t{0}, size - static_cast<int64_t>(bytes.size())}) {
        file->read_at(at, std::as_writable_bytes(std::span(bytes)));
        add(hash, bytes);
        if (size <= end_bytes) break;
    }
}

}  // namespace

std::string fingerprint_of(FileSystem& files, std::vector<Path> const& paths) {
    Sha256 hash;
    for (Path const& path : paths) add_file(hash, files, path, kEndBytes);
    return hash.finish();
}

std::string tokenizer_fingerprint(FileSystem& files, std::string const& tokenizer) {
    if (tokenizer == "bytes") return tokenizer;
    Path const folder = files.is_directory(tokenizer) ? Path(tokenizer) : Path(tokenizer).parent_path();
    Sha256 hash;
    for (char const* const name :
         {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "config.json"})
        if (files.exists(folder / name)) add_file(hash, files, folder / name, int64_t{1} << 30);
    return fmt::format("{} {}", tokenizer, hash.finish());
}

Journal::Journal(FileSystem& files, Path const& prefix, std::string const& inputs, double seconds)
    : files_(files),
      path_(prefix.string() + kResumeExtension),
      lock_path_(prefix.string() + kLockExtension),
      seconds_(seconds) {
    Sha256 hash;
    add(hash, inputs);
    inputs_ = hash.finish();
    lock_ = files_.lock(lock_path_, kLockHolder);
    next_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(seconds_);
    if (!files_.exists(path_)) return;
    auto const json = nlohmann::json::parse(files_.read_text(path_, kMaxBytes), nullptr, /*allow_exceptions=*/false);
    bool const mine = json.is_object() && json.value("inputs", "") == inputs_;
    if (!mine) {
        fmt::print(stderr, "perigee: {} is of other inputs or options: beginning anew\n", path_.string());
        files_.remove_all(path_);
        return;
    }
    auto const& writer = json.at("writer");
    found_ = State{json.at("place").dump(), {writer.at(0), writer.at(1), writer.at(2), writer.at(3)}};
    fmt::print(stderr, "perigee: going on after {} documents of an earlier run\n", found_->writer.documents);
}

void Journal::save(WriterState const& writer, std::string const& place) {
    nlohmann::json const json{{"inputs", inputs_},
                              {"place", nlohmann::json::parse(place)},
                              {"writer", {writer.documents, writer.tokens, writer.mask_byte, writer.all_bits}}};
    files_.replace_text(path_, json.dump(1) + "\n");
    next_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(seconds_);
}

void Journal::finish() {
    files_.remove_all(path_);
    files_.remove_temporaries(path_);  // of runs that were killed while they saved
}

Journal::~Journal() {
    try {
        files_.remove_all(lock_path_);
    } catch (std::exception const&) {  // a file without a lock is in nobody's way
    }
}

}  // namespace perigee
