#include "data/text_reader.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <utility>

namespace perigee {

namespace {
constexpr int64_t kTextPieceBytes = int64_t{1} << 18;
constexpr int kGzipWindow = 15 + 16;  // the largest window, gzip's header and checksum

/// A frame, or one to skip, which pzstd writes first.
bool is_zstd(std::string_view raw) {
    return raw.starts_with("\x28\xB5\x2F\xFD") ||
           (raw.size() > 4 && (raw[0] & 0xF0) == 0x50 && raw.substr(1).starts_with("\x2A\x4D\x18"));
}
}  // namespace

/// Of compressed files, which may hold several streams end to end.
class TextReader::Decoder {
  public:
    virtual ~Decoder() = default;
    /// Takes from the front of `raw` and fills the front of `text`; returns how many bytes it wrote. `problem` is set
    /// where the bytes are damaged.
    virtual size_t decode(std::string_view& raw, std::span<char> text, std::string& problem) = 0;
    bool at_stream_end() const { return at_stream_end_; }

  protected:
    bool at_stream_end_ = false;
};

class TextReader::GzipDecoder : public Decoder {
  public:
    GzipDecoder() { PERIGEE_CHECK(inflateInit2(&stream_, kGzipWindow) == Z_OK, "zlib does not start"); }
    ~GzipDecoder() override { inflateEnd(&stream_); }
    GzipDecoder(GzipDecoder const&) = delete;
    GzipDecoder& operator=(GzipDecoder const&) = delete;

    size_t decode(std::string_view& raw, std::span<char> text, std::string& problem) override {
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(raw.data()));
        stream_.avail_in = static_cast<uInt>(raw.size());
        stream_.next_out = reinterpret_cast<Bytef*>(text.data());
        stream_.avail_out = static_cast<uInt>(text.size());
        if (std::exchange(at_stream_end_, false)) inflateReset(&stream_);
        int const status = inflate(&stream_, Z_NO_FLUSH);
        at_stream_end_ = status == Z_STREAM_END;
        if (!at_stream_end_ && status != Z_OK && status != Z_BUF_ERROR)
            problem = stream_.msg != nullptr ? stream_.msg : zError(status);
        raw.remove_prefix(raw.size() - stream_.avail_in);
        return text.size() - stream_.avail_out;
    }

  private:
    z_stream stream_{};
};

class TextReader::ZstdDecoder : public Decoder {
  public:
    size_t decode(std::string_view& raw, std::span<char> text, std::string& problem) override {
        ZSTD_inBuffer in{raw.data(), raw.size(), 0};
        ZSTD_outBuffer out{text.data(), text.size(), 0};
        size_t const left = ZSTD_decompressStream(stream_.get(), &out, &in);
        if (ZSTD_isError(left) != 0) {
            problem = ZSTD_getErrorName(left);
            if (ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge)
                problem = "its window is more than 128 MiB; decompress it first (zstd -d --long=31)";
        }
        at_stream_end_ = left == 0;
        raw.remove_prefix(in.pos);
        return out.pos;
    }

  private:
    std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_{ZSTD_createDStream(), ZSTD_freeDStream};
};

TextReader::TextReader(FileSystem& files, Path path) : path_(std::move(path)), file_(files.open(path_)) {
    if (!read_raw()) return;
    if (raw_.starts_with("\x1f\x8b")) {
        decoder_ = std::make_unique<GzipDecoder>();
    } else if (is_zstd(raw_)) {
        decoder_ = std::make_unique<ZstdDecoder>();
    } else {
        text_ = std::move(raw_);
    }
}

TextReader::~TextReader() = default;

bool TextReader::read_raw() {
    int64_t const size = std::min(kTextPieceBytes, file_->size() - offset_);
    if (size <= 0) return false;
    raw_.resize(static_cast<size_t>(size));
    file_->read_at(offset_, std::as_writable_bytes(std::span(raw_)));
    offset_ += size;
    return true;
}

void TextReader::decode_some() {
    text_.resize(static_cast<size_t>(kTextPieceBytes));
    std::string_view rest = raw_;
    std::string problem;
    text_.resize(decoder_->decode(rest, text_, problem));
    if (!problem.empty())
        fail(Category::data, "{}: damaged compression after line {}: {}", path_.string(), line_number_, problem);
    raw_.erase(0, raw_.size() - rest.size());
}

bool TextReader::refill() {
    begin_ = 0;
    text_.clear();
    if (!decoder_) {
        if (!read_raw()) return false;
        text_.swap(raw_);
        return true;
    }
    while (text_.empty()) {
        // A decoder may still hold output when all input is consumed, so the file's end alone proves nothing.
        bool const more = !raw_.empty() || read_raw();
        if (!more && decoder_->at_stream_end()) return false;
        decode_some();
        if (!more && text_.empty() && !decoder_->at_stream_end()) {
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
    return decoder_ ? std::min(max_bytes, std::max(kFreeBytes, kMostExpansion * offset_)) : max_bytes;
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
