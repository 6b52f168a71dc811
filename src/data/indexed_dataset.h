// Tokenized documents on disk in Megatron-LM's format (megatron/core/datasets/indexed_dataset.py), little endian:
//   PREFIX.idx   "MMIDIDX\0\0", u64 version = 1, u8 dtype code, u64 sequences, u64 borders,
//                i32[sequences] lengths, i64[sequences] byte offsets into the .bin, i64[borders] document borders
//                counted in sequences (first 0, last `sequences`), optionally i8[sequences] modes (not used)
//   PREFIX.bin   the tokens, end to end
// and, ours, at most one of two files that say how much each token counts as a target of the loss (1 without one):
//   PREFIX.mask     "PGEMASK\0", u64 version = 1, u64 tokens, then one bit per token, lowest bit of a byte first,
//   unused
//                   bits 0: weights 0 and 1
//   PREFIX.weights  "PGEWGHT\0", u64 version = 1, u64 tokens, then f32[tokens], finite and at least 0
// The arrays of the .idx start at byte 34 and are not aligned.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_system.h"

namespace perigee {

/// Codes of the .idx header. Floating point (6, 7) is not a token.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };
int64_t size_of(TokenType type);
char const* to_string(TokenType type);

/// Reader. Everything is checked when it opens, so that no later read leaves the files: errors are Category::data and
/// name the file, what was expected and what was found. Positions and counts are in tokens unless said.
class IndexedDataset {
  public:
    /// `prefix` is the path without .bin and .idx.
    IndexedDataset(FileSystem& files, Path const& prefix);

    Path const& prefix() const { return prefix_; }
    TokenType token_type() const { return type_; }
    int64_t tokens() const { return tokens_; }
    int64_t documents() const { return borders_ - 1; }
    bool has_weights() const { return mask_ != nullptr || weights_ != nullptr; }

    /// First position of a document in [0, documents()]; the end of the last one for documents().
    int64_t document_begin(int64_t document) const;
    /// The document that holds `position` in [0, tokens()). Binary search.
    int64_t document_at(int64_t position) const;
    /// Tokens [position, position + values.size()), as stored.
    void read(int64_t position, std::span<int64_t> values) const;
    /// How much the token counts as a target; 1 where no file says otherwise.
    float loss_weight(int64_t position) const;

  private:
    void parse_header();
    void check_sequences(int64_t bin_bytes);
    void check_borders() const;
    void open_sidecars(FileSystem& files);
    std::unique_ptr<MappedFile> open_sidecar(FileSystem& files, Path const& path, std::string_view magic,
                                             int64_t bytes) const;
    int64_t sequence_begin(int64_t sequence) const;
    int64_t border(int64_t index) const;

    Path prefix_;
    std::unique_ptr<MappedFile> index_, bin_, mask_, weights_;
    TokenType type_ = TokenType::u16;
    int64_t sequences_ = 0, borders_ = 0, tokens_ = 0;
    std::byte const* lengths_ = nullptr;  // views into index_
    std::byte const* offsets_ = nullptr;
    std::byte const* borders_at_ = nullptr;
};

/// What a writer must know to go on with the files of another one, which ended without finish().
struct WriterState {
    int64_t documents = 0;
    int64_t tokens = 0;
    int64_t mask_byte = 0;  ///< the bits of the last tokens, not yet eight
    bool all_bits = true;
};

/// Writer of documents one by one; memory grows by four bytes per document only. The files appear under their names
/// when `finish` returns, the index last; a writer destroyed before leaves nothing behind, or, after `save`, the files
/// to go on with.
class IndexedDatasetWriter {
  public:
    /// Tokens take two bytes when vocab_size < 65500, else four. `with_weights` also writes PREFIX.mask or, where a
    /// weight is neither 0 nor 1, PREFIX.weights. With `state`, goes on with the files of the writer that saved it.
    IndexedDatasetWriter(FileSystem& files, Path prefix, int64_t vocab_size, bool with_weights = false,
                         WriterState const* state = nullptr);
    ~IndexedDatasetWriter();
    IndexedDatasetWriter(IndexedDatasetWriter const&) = delete;
    IndexedDatasetWriter& operator=(IndexedDatasetWriter const&) = delete;

    /// `weights` has one entry per token, how much it counts as a target (finite, at least 0); given exactly when the
    /// writer writes them. Throws Category::data for ids outside [0, vocab_size).
    void add_document(std::span<int32_t const> tokens, std::span<float const> weights = {});
    /// Makes what was written so far durable.
    WriterState save();
    /// Throws Category::data when there are no tokens: the reader would refuse such files. `all_written` is called when
    /// the files are whole, before they take their names. From then on the work cannot be resumed. `records` then
    /// writes the files beside the data set, before the index takes its name. Without an index no data set can be
    /// opened.
    void finish(std::function<void()> const& all_written = {}, std::function<void()> const& records = {});

    int64_t documents() const { return static_cast<int64_t>(lengths_.size()); }
    int64_t tokens() const { return tokens_; }
    TokenType token_type() const { return type_; }

  private:
    /// One of the files, written under a temporary name through a buffer.
    class Output;

    std::unique_ptr<Output> open(char const* extension, int64_t bytes) const;
    void read_lengths(int64_t documents);
    void write_index();
    void add_weights(std::span<float const> weights);
    void finish_weights();
    Path path(char const* extension) const;

    FileSystem& files_;
    Path prefix_;
    int64_t vocab_size_;
    TokenType type_;
    std::unique_ptr<Output> bin_, mask_, weights_, index_;
    std::vector<int32_t> lengths_;
    int64_t tokens_ = 0;
    uint8_t mask_byte_ = 0;
    bool all_bits_ = true;  ///< no weight besides 0 and 1 yet
};

}  // namespace perigee
