// Documents from text files and JSONL files (one JSON object per line), plain or compressed by gzip or zstd, and from
// Parquet files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_reader.h"
#include "io/file_system.h"

namespace perigee {

struct TextOptions {
    enum class Format { automatic, text, jsonl };
    Format format = Format::automatic;  ///< automatic: JSONL where the name ends in .jsonl or .ndjson, before any .gz
    std::string key = "text";           ///< JSONL: where the text is; Parquet: the column
    int64_t blank_lines = 0;            ///< text: this many blank lines or more separate documents; 0: one per file
};

inline constexpr int64_t kMaxJsonLineBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxDocumentBytes = int64_t{1} << 30;  ///< of a compressed file less: TextReader::limit()

/// A file or link that is left out, and why.
struct SkippedFile {
    Path path;
    std::string reason;
};

/// Files; of folders, all files below; and what patterns match (*, ?, [...], and ** for any folders), folders included.
/// In the order given, folders and matches sorted by name. Of folders and matches only names that end in one of
/// `suffixes` (all if none given; .gz and .zst do not count). Of these, files without text, links to nothing, what
/// `perigee tokenize` writes and what unclear_json() is about go to `skipped`. Throws Category::data for what does not
/// exist, patterns that match nothing, and a file in `inputs` that unclear_json() is about. Each file comes once.
std::vector<Path> list_text_files(FileSystem& files, std::vector<Path> const& inputs,
                                  std::vector<std::string> const& suffixes, std::vector<SkippedFile>& skipped,
                                  TextOptions::Format format = TextOptions::Format::automatic);

/// Throws Category::data, naming the file, where `reader` is at the beginning of one that holds no text.
void refuse_binary(TextReader& reader);

/// Throws Category::data, naming the file and how to convert it, where `reader` is at the beginning of a JSON array:
/// one object is read per line.
void refuse_array(TextReader& reader);

/// What to do about a file whose name ends in .json, where the format is told by the name: it could be one object per
/// line, an array, or meant as text. Nothing for other files.
std::optional<std::string> unclear_json(Path const& path, TextOptions::Format format);

/// A document and the bytes of the file read so far.
using UseDocument = std::function<void(std::string_view text, int64_t bytes_read)>;

/// Calls `use` for every document of the file, empty ones included, but the first `skip`. Memory is bounded by the
/// largest document. Throws Category::data with file, line and reason: malformed or too long or too deeply nested JSON,
/// no text under the key, documents over kMaxDocumentBytes, damaged compression, a file that holds no text.
void for_each_document(FileSystem& files, Path const& path, TextOptions const& options, UseDocument const& use,
                       int64_t skip = 0);

}  // namespace perigee
