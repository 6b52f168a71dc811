#include "data/parquet.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/helpers/scripts.h"

namespace perigee {

namespace {
constexpr int64_t kMostRowsOfBatch = int64_t{1} << 24;
constexpr int64_t kMostBytesOfBatch = int64_t{1} << 36;
}  // namespace

bool is_parquet(Path const& path) { return path.extension() == ".parquet"; }

ParquetReader::ParquetReader(FileSystem& files, Path const& path, Kind kind, std::string const& column, int64_t skip)
    : path_(path),
      helper_({.what = "the helper that reads Parquet",
               .script = kReadParquetScript,
               .arguments = {kind == Kind::text ? "text" : "records", path.string(), column, std::to_string(skip)}}),
      bytes_(files.open(path)->size()),
      row_(skip) {
    std::string const line = helper_.read_line();
    auto const answer = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    PERIGEE_CHECK(answer.is_object(), "a helper's answer: {:.80}", line);
    if (answer.contains("missing"))
        fail(Category::config, "{}: {}", path_.string(),
             missing_module(helper_, answer["missing"], "install it (pip install pyarrow)"));
    if (answer.contains("error"))
        fail(Category::data, "{}: {}", path_.string(), answer["error"].get_ref<std::string const&>());
    rows_ = answer["rows"];
}

int64_t ParquetReader::number() {
    int64_t value = 0;
    helper_.read({reinterpret_cast<char*>(&value), sizeof(value)});
    return value;
}

bool ParquetReader::next_batch() {
    int64_t const rows = number();
    if (rows == 0) return false;
    if (rows < 0) {
        std::string message(static_cast<size_t>(std::clamp<int64_t>(number(), 0, 1 << 16)), '\0');
        helper_.read(message);
        fail(Category::data, "{}: after row {}: {}", path_.string(), row_, message);
    }
    PERIGEE_CHECK(rows <= kMostRowsOfBatch, "{} rows", rows);
    offsets_.resize(static_cast<size_t>(rows) + 1);
    helper_.read({reinterpret_cast<char*>(offsets_.data()), offsets_.size() * sizeof(int64_t)});
    bool const ascend = offsets_[0] == 0 && std::ranges::is_sorted(offsets_);
    if (!ascend || offsets_.back() > kMostBytesOfBatch)
        fail(Category::data, "{}: after row {}: damaged offsets of texts", path_.string(), row_);
    data_.resize(static_cast<size_t>(offsets_.back()));
    helper_.read(data_);
    at_ = 0;
    return true;
}

bool ParquetReader::next(std::string_view& text) {
    if (at_ + 1 >= offsets_.size() && !next_batch()) return offsets_.clear(), false;
    auto const begin = static_cast<size_t>(offsets_[at_]), end = static_cast<size_t>(offsets_[at_ + 1]);
    text = std::string_view(data_).substr(begin, end - begin);
    ++at_;
    ++row_;
    return true;
}

int64_t ParquetReader::bytes_read() const {
    double const share = rows_ > 0 ? static_cast<double>(row_) / static_cast<double>(rows_) : 1;
    return std::min(bytes_, static_cast<int64_t>(static_cast<double>(bytes_) * share));
}

}  // namespace perigee
