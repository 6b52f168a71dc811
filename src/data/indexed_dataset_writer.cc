#include <cmath>
#include <limits>
#include <utility>

#include "data/dataset_files.h"
#include "data/indexed_dataset.h"

namespace perigee {

class IndexedDatasetWriter::Output {
  public:
    Output(FileSystem& files, Path path)
        : files_(files), path_(std::move(path)), temporary_(path_.string() + ".tmp"), file_(files.create(temporary_)) {}

    ~Output() {
        if (renamed_) return;
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

    void overwrite(int64_t offset, uint64_t value) {
        flush();
        file_->write_at(offset, std::as_bytes(std::span(&value, 1)));
    }

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
    int64_t written_ = 0;
    bool renamed_ = false;
};

IndexedDatasetWriter::IndexedDatasetWriter(FileSystem& files, Path prefix, int64_t vocab_size, bool with_weights)
    : files_(files),
      prefix_(std::move(prefix)),
      vocab_size_(vocab_size),
      type_(vocab_size < 65500 ? TokenType::u16 : TokenType::i32) {
    bin_ = std::make_unique<Output>(files_, path(".bin"));
    index_ = std::make_unique<Output>(files_, path(".idx"));
    if (!with_weights) return;
    // Which of the two is needed is known at the end, as is the number of tokens.
    mask_ = std::make_unique<Output>(files_, path(".mask"));
    weights_ = std::make_unique<Output>(files_, path(".weights"));
    for (auto const& [file, magic] : {std::pair{mask_.get(), kMaskMagic}, {weights_.get(), kWeightsMagic}}) {
        file->bytes(magic.data(), magic.size());
        file->number(kSidecarVersion);
        file->number(uint64_t{0});
    }
}

IndexedDatasetWriter::~IndexedDatasetWriter() = default;

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
    (all_bits_ ? weights_ : mask_).reset();
    Output& used = all_bits_ ? *mask_ : *weights_;
    used.overwrite(kSidecarHeaderBytes - 8, static_cast<uint64_t>(tokens_));
    used.close();
}

void IndexedDatasetWriter::write_index() {
    index_->bytes(kIndexMagic.data(), kIndexMagic.size());
    index_->number(kIndexVersion);
    index_->number(static_cast<uint8_t>(type_));
    index_->number(static_cast<uint64_t>(documents()));
    index_->number(static_cast<uint64_t>(documents() + 1));
    index_->bytes(lengths_.data(), lengths_.size() * sizeof(int32_t));
    int64_t offset = 0;
    for (int32_t const length : lengths_) {
        index_->number(offset);
        offset += length * size_of(type_);
    }
    for (int64_t border = 0; border <= documents(); ++border) index_->number(border);
}

void IndexedDatasetWriter::finish() {
    if (tokens_ == 0) fail(Category::data, "{}: no tokens to write", prefix_.string());
    write_index();
    if (mask_) finish_weights();
    bin_->close();
    index_->close();
    // Files of an earlier data set of this name must never pair with new ones, so its index goes first.
    files_.remove_all(path(".idx"));
    files_.remove_all(path(".mask"));
    files_.remove_all(path(".weights"));
    bin_->rename();
    if (mask_) mask_->rename();
    if (weights_) weights_->rename();
    index_->rename();
    files_.sync_directory(prefix_.has_parent_path() ? prefix_.parent_path() : Path("."));
}

}  // namespace perigee
