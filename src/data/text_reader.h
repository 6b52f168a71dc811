// Lines of a text file, plain or compressed by gzip or zstd (told by its first bytes, whatever its name), in bounded
// memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/file_system.h"

namespace perigee {

class TextReader {
  public:
    TextReader(FileSystem& files, Path path);
    ~TextReader();

    /// Replaces `line` by the next one with its line end; false after the last. Throws Category::data naming file and
    /// line for lines of more than limit(max_bytes) and for damaged or truncated compression.
    bool read_line(std::string& line, int64_t max_bytes);

    /// What read_line() will read next, some kilobytes; empty at the end.
    std::string_view ahead();

    /// Size of a file that is not compressed, else 0, and `bytes` of it from `begin` on; does not change what is read
    /// next.
    int64_t plain_bytes() const { return decoder_ ? 0 : file_->size(); }
    std::string plain_piece(int64_t begin, int64_t bytes);

    /// `max_bytes`; of a compressed file at most kFreeBytes, or kMostExpansion times what was read of it where that is
    /// more. Text shrinks 3 to 10 times, so only a file made to fill the memory meets this limit.
    int64_t limit(int64_t max_bytes) const;
    static constexpr int64_t kFreeBytes = int64_t{64} << 20;
    static constexpr int64_t kMostExpansion = 32;

    Path const& path() const { return path_; }
    int64_t line_number() const { return line_number_; }  ///< of the line read last; the first is 1
    int64_t bytes_read() const { return offset_; }        ///< of the file on disk

  private:
    class Decoder;
    class GzipDecoder;
    class ZstdDecoder;

    bool refill();
    bool read_raw();
    void decode_some();

    Path path_;
    std::unique_ptr<ReadableFile> file_;
    std::unique_ptr<Decoder> decoder_;  ///< only for compressed files
    std::string raw_, text_;            ///< as on disk; ready to be read
    size_t begin_ = 0;                  ///< of what is not yet read of text_
    int64_t offset_ = 0;
    int64_t line_number_ = 0;
};

}  // namespace perigee
