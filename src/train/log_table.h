// The log lines of training steps: rows of one table, at most 79 columns wide, under a header that comes again every
// twenty rows.
//
//     step     loss  grad norm       lr  tokens/s    MFU   memory/peak      left
//    12000   3.2105      0.812  3.0e-04   123,456  41.2%  61.0/72.1GiB  01:02:03
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace perigee {

struct LogRow {
    int64_t step = 0;
    double loss = 0;
    double grad_norm = 0;
    double lr = 0;
    double tokens_per_s = 0;
    std::optional<double> mfu;  ///< absent: no such column
    int64_t memory_bytes = 0;
    int64_t memory_peak_bytes = 0;
    double seconds_left = 0;
    bool skipped = false;  ///< said in place of the time left
};

class LogTable {
  public:
    struct Line {
        std::string plain;
        std::string styled;  ///< the same text with colours, for terminals
    };
    /// The row, after a header where one is due.
    std::vector<Line> lines(LogRow const& row);

  private:
    int64_t rows_ = 0;  ///< since the last header
};

}  // namespace perigee
