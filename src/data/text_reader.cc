#include "data/text_reader.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

namespace perigee {

namespace {
constexpr int64_t kPieceBytes = int64_t{1} << 18;
constexpr int kGzipWindow = 15 + 16;  // the largest window, gzip's header and checksum
}  // namespace

struct TextReader::Inflater {
    Inflater() { PERIGEE_CHECK(inflateInit2(&stream, kGzipWindow) == Z_OK, "zlib does not start"); }
    ~Inflater() { inflateEnd(&stream); }
    Inflater(Inflater const&) = delete;
    Inflater& operator=(Inflater const&) = delete;

    z_stream stream{};
    bool at_member_end = false;  ///< a gzip file may hold several streams end to end
};

TextReader::TextReader(FileSystem& files, Path path) : path_(std::move(path)), file_(files.open(path_)) {
    if (!read_raw()) return;
    if (raw_.starts_with("\x1f\x8b")) {
        inflater_ = std::make_unique<Inflater>();
    } else {
        text_ = std::move(raw_);
    }
}

TextReader::~TextReader() = default;

bool TextReader::read_raw() {
    int64_t const size = std::min(kPieceBytes, file_->size() - offset_);
    if (size <= 0) return false;
    raw_.resize(static_cast<size_t>(size));
    file_->read_at(offset_, std::as_writable_bytes(std::span(raw_)));
    offset_ += size;
    return true;
}

void TextReader::inflate_some() {
    auto& stream = inflater_->stream;
    text_.resize(static_cast<size_t>(kPieceBytes));
    stream.next_in = reinterpret_cast<Bytef*>(raw_.data());
    stream.avail_in = static_cast<uInt>(raw_.size());
    stream.next_out = reinterpret_cast<Bytef*>(text_.data());
    stream.avail_out = static_cast<uInt>(text_.size());
    if (std::exchange(inflater_->at_member_end, false)) inflateReset(&stream);
    int const status = inflate(&stream, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
        inflater_->at_member_end = true;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
        fail(Category::data, "{}: damaged compression after line {}: {}", path_.string(), line_number_,
             stream.msg != nullptr ? stream.msg : zError(status));
    }
    raw_.erase(0, raw_.size() - stream.avail_in);
    text_.resize(text_.size() - stream.avail_out);
}

bool TextReader::refill() {
    begin_ = 0;
    text_.clear();
    if (!inflater_) {
        if (!read_raw()) return false;
        text_.swap(raw_);
        return true;
    }
    while (text_.empty()) {
        // zlib may still hold output when all input is consumed, so the file's end alone proves nothing.
        bool const more = !raw_.empty() || read_raw();
        if (!more && inflater_->at_member_end) return false;
        inflate_some();
        if (!more && text_.empty() && !inflater_->at_member_end) {
            fail(Category::data, "{}: the compressed file is truncated after line {}", path_.string(), line_number_);
        }
    }
    return true;
}

std::string_view TextReader::ahead() {
    if (begin_ == text_.size() && !refill()) return {};
    return std::string_view(text_).substr(begin_);
}

std::string TextReader::plain_piece(int64_t begin, int64_t bytes) {
    std::string piece(static_cast<size_t>(bytes), '\0');
    file_->read_at(begin, std::as_writable_bytes(std::span(piece)));
    return piece;
}

int64_t TextReader::limit(int64_t max_bytes) const {
    return inflater_ ? std::min(max_bytes, std::max(kFreeBytes, kMostExpansion * offset_)) : max_bytes;
}

bool TextReader::read_line(std::string& line, int64_t max_bytes) {
    line.clear();
    while (begin_ < text_.size() || refill()) {
        size_t const newline = text_.find('\n', begin_);
        size_t const end = newline == std::string::npos ? text_.size() : newline + 1;
        if (line.empty()) ++line_number_;
        if (int64_t const most = limit(max_bytes); static_cast<int64_t>(line.size() + end - begin_) > most) {
            fail(Category::data, "{}:{}: a line of more than {} bytes{}", path_.string(), line_number_, most,
                 most < max_bytes
                     ? fmt::format(", from {} compressed ones: if that is meant, decompress the file first", offset_)
                     : "");
        }
        line.append(text_, begin_, end - begin_);
        begin_ = end;
        if (newline != std::string::npos) return true;
    }
    return !line.empty();
}

}  // namespace perigee
