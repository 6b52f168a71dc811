// Parquet files, read by pyarrow in a helper process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/helper_process.h"
#include "io/file_system.h"

namespace perigee {

/// By its name, .parquet.
bool is_parquet(Path const& path);

class ParquetReader {
  public:
    enum class Kind {
        text,    ///< the texts of one column; null is an empty one
        records  ///< rows as JSON objects, without what is null
    };
    /// Begins at row `skip`. Throws Category::config where Python or pyarrow is missing, Category::data naming the file
    /// where it is damaged or has no such column.
    ParquetReader(FileSystem& files, Path const& path, Kind kind, std::string const& column, int64_t skip = 0);

    /// Replaces `text` by that of the next row; false after the last. Holds until the next call.
    bool next(std::string_view& text);
    int64_t row() const { return row_; }  ///< of the text read last; the first is 1
    /// Of the file on disk, as far as rows tell.
    int64_t bytes_read() const;

  private:
    bool next_batch();
    int64_t number();

    Path path_;
    HelperProcess helper_;
    int64_t bytes_, rows_ = 0, row_;
    std::vector<int64_t> offsets_;
    std::string data_;
    size_t at_ = 0;  ///< of offsets_
};

}  // namespace perigee
