#include <cmath>
#include <limits>
#include <utility>

#include "data/dataset_files.h"
#include "data/indexed_dataset.h"

namespace perigee {

class IndexedDatasetWriter::Output {
  public:
    /// `bytes` of an earlier one are kept; 0: begins anew.
    Output(FileSystem& files, Path path, int64_t bytes)
        : files_(files),
          path_(std::move(path)),
          temporary_(path_.string() + ".tmp"),
          file_(bytes > 0 ? files.append(temporary_) : files.create(temporary_)),
          written_(bytes),
          saved_(bytes > 0) {
        if (bytes > 0) file_->truncate(bytes);
    }

    ~Output() {
        if (renamed_ || saved_) return;
        try {
            file_.reset();
            files_.remove_all(temporary_);
        } catch (...) {  // the error that ended the writer is the one worth reporting
        }
    }

    void bytes(void const* data, size_t size) {
        auto const* const from = static_cast<std::byte const*>(data);
        buffer_.insert(buffer_.end(), from, from + size);
        if (buffer_.size() >= kBufferBytes) flush();
    }
    template <class Number>
    void number(Number value) {
        bytes(&value, sizeof(value));
    }

    template <class Number>
    void overwrite(int64_t offset, Number value) {
        flush();
        file_->write_at(offset, std::as_bytes(std::span(&value, 1)));
    }
    void save() {
        flush();
        file_->sync();
        saved_ = true;
    }
    void drop() { saved_ = false; }

    void close() {
        flush();
        file_->sync();
        file_.reset();
    }
    void rename() {
        files_.rename(temporary_, path_);
        renamed_ = true;
    }

  private:
    static constexpr size_t kBufferBytes = size_t{1} << 20;

    void flush() {
        if (!buffer_.empty()) file_->write_at(written_, buffer_);
        written_ += static_cast<int64_t>(buffer_.size());
        buffer_.clear();
    }

    FileSystem& files_;
    Path path_;
    Path temporary_;
    std::unique_ptr<WritableFile> file_;
    std::vector<std::byte> buffer_;
    int64_t written_;
    bool renamed_ = false, saved_;  ///< what was saved stays for another writer
};

IndexedDatasetWriter::IndexedDatasetWriter(FileSystem& files, Path prefix, int64_t vocab_size, bool with_weights,
                                           WriterState const* state)
    : files_(files),
      prefix_(std::move(prefix)),
      vocab_size_(vocab_size),
      type_(vocab_size < 65500 ? TokenType::u16 : TokenType::i32) {
    bool const goes_on = state != nullptr && state->documents > 0;
    int64_t const tokens = goes_on ? state->tokens : 0;
    bin_ = open(".bin", tokens * size_of(type_));
    index_ = open(".idx", goes_on ? kIndexHeaderBytes + state->documents * size_of(TokenType::i32) : 0);
    if (with_weights) {
        // Which of the two is needed is known at the end, as is the number of tokens.
        mask_ = open(".mask", goes_on ? kSidecarHeaderBytes + tokens / 8 : 0);
        weights_ = open(".weights", goes_on ? kSidecarHeaderBytes + tokens * int64_t{sizeof(float)} : 0);
    }
    if (goes_on) {
        tokens_ = tokens;
        mask_byte_ = static_cast<uint8_t>(state->mask_byte);
        all_bits_ = state->all_bits;
        read_lengths(state->documents);
        return;
    }
    // The lengths of documents follow a header that is written last.
    for (int64_t i = 0; i < kIndexHeaderBytes; ++i) index_->number(uint8_t{0});
    if (!with_weights) return;
    for (auto const& [file, magic] : {std::pair{mask_.get(), kMaskMagic}, {weights_.get(), kWeightsMagic}}) {
        file->bytes(magic.data(), magic.size());
        file->number(kSidecarVersion);
        file->number(uint64_t{0});
    }
}

IndexedDatasetWriter::~IndexedDatasetWriter() = default;

std::unique_ptr<IndexedDatasetWriter::Output> IndexedDatasetWriter::open(char const* extension, int64_t bytes) const {
    Path const earlier = path(extension).string() + ".tmp";
    if (bytes > 0 && (!files_.exists(earlier) || files_.file_size(earlier) < bytes))
        fail(Category::data, "{} does not hold the {} bytes that an earlier run wrote: remove {} to begin anew",
             earlier.string(), bytes, path(".resume.json").string());
    return std::make_unique<Output>(files_, path(extension), bytes);
}

void IndexedDatasetWriter::read_lengths(int64_t documents) {
    lengths_.resize(static_cast<size_t>(documents));
    files_.open(path(".idx.tmp"))->read_at(kIndexHeaderBytes, std::as_writable_bytes(std::span(lengths_)));
}

WriterState IndexedDatasetWriter::save() {
    for (auto const* output : {&bin_, &index_, &mask_, &weights_})
        if (*output) (*output)->save();
    return {documents(), tokens_, mask_byte_, all_bits_};
}

Path IndexedDatasetWriter::path(char const* extension) const { return Path(prefix_.string() + extension); }

void IndexedDatasetWriter::add_document(std::span<int32_t const> tokens, std::span<float const> weights) {
    PERIGEE_CHECK(weights.size() == (mask_ ? tokens.size() : 0), "{} loss weights for {} tokens", weights.size(),
                  tokens.size());
    if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
        fail(Category::data, "{}: document {} has {} tokens; the format holds at most 2^31 - 1", prefix_.string(),
             documents(), tokens.size());
    }
    for (int32_t const id : tokens) {
        if (id < 0 || id >= vocab_size_) {
            fail(Category::data, "{}: document {} has token id {}, outside the vocabulary of {}", prefix_.string(),
                 documents(), id, vocab_size_);
        }
        if (type_ == TokenType::u16) {
            bin_->number(static_cast<uint16_t>(id));
        } else {
            bin_->number(id);
        }
    }
    add_weights(weights);
    lengths_.push_back(static_cast<int32_t>(tokens.size()));
    index_->number(lengths_.back());
    tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetWriter::add_weights(std::span<float const> weights) {
    for (size_t i = 0; i < weights.size(); ++i) {
        float const weight = weights[i];
        PERIGEE_CHECK(std::isfinite(weight) && weight >= 0, "loss weight {}", weight);
        if (weight != 0 && weight != 1) all_bits_ = false;
        int64_t const bit = (tokens_ + static_cast<int64_t>(i)) % 8;
        if (weight != 0) mask_byte_ = static_cast<uint8_t>(mask_byte_ | 1u << bit);
        if (bit == 7) mask_->number(std::exchange(mask_byte_, uint8_t{0}));
    }
    if (weights_) weights_->bytes(weights.data(), weights.size_bytes());
}

void IndexedDatasetWriter::finish_weights() {
    if (tokens_ % 8 != 0) mask_->number(mask_byte_);
    auto& unused = all_bits_ ? weights_ : mask_;
    unused->drop();
    unused.reset();
    Output& used = all_bits_ ? *mask_ : *weights_;
    used.overwrite(kSidecarHeaderBytes - 8, static_cast<uint64_t>(tokens_));
    used.close();
}

void IndexedDatasetWriter::write_index() {
    int64_t at = 0;
    auto const header = [&](auto value) {
        index_->overwrite(at, value);
        at += static_cast<int64_t>(sizeof(value));
    };
    for (char const letter : kIndexMagic) header(letter);
    header(kIndexVersion);
    header(static_cast<uint8_t>(type_));
    header(static_cast<uint64_t>(documents()));
    header(static_cast<uint64_t>(documents() + 1));
    int64_t offset = 0;
    for (int32_t const length : lengths_) {
        index_->number(offset);
        offset += length * size_of(type_);
    }
    for (int64_t border = 0; border <= documents(); ++border) index_->number(border);
}

void IndexedDatasetWriter::finish(std::function<void()> const& all_written, std::function<void()> const& records) {
    if (tokens_ == 0) fail(Category::data, "{}: no tokens to write", prefix_.string());
    write_index();
    if (mask_) finish_weights();
    bin_->close();
    index_->close();
    if (all_written) all_written();
    // Files of an earlier data set of this name must never pair with new ones, so its index goes first.
    files_.remove_all(path(".idx"));
    files_.remove_all(path(".mask"));
    files_.remove_all(path(".weights"));
    files_.remove_all(path(kChatRecordExtension));
    files_.remove_all(path(kTokenizerRecordExtension));
    bin_->rename();
    if (mask_) mask_->rename();
    if (weights_) weights_->rename();
    if (records) records();
    index_->rename();
    files_.sync_directory(prefix_.has_parent_path() ? prefix_.parent_path() : Path("."));
}

}  // namespace perigee
