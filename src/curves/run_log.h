// What `perigee plot` reads: one value per step from a run's metrics.jsonl, as far as it can be read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace perigee::plot {

/// y is NaN where the run logged a value that is not a number.
struct Point {
    double x = 0;
    double y = 0;
};

/// Finite, and small enough for sums and differences of such values to be finite too.
bool is_drawable(Point point);

struct RunLog {
    std::string name;          ///< of the run's folder
    std::vector<Point> train;  ///< steps rise strictly
    std::vector<Point> eval;
    int64_t unreadable_lines = 0;  ///< not counting a last line that is still being written
};

/// Reads `key` (and `eval_` + key) from `path`/metrics.jsonl, or from `path` itself when it is a file. A step that
/// comes again, as after a resume, replaces all from there on. A line is unreadable when it is no JSON object of at
/// most kMaxMetricsLine bytes, or its step no number from 0 to 10^15. Throws Category::data when there is nothing to
/// draw.
RunLog read_run(FileSystem& files, std::string const& path, std::string const& key);

inline constexpr size_t kMaxMetricsLine = size_t{1} << 20;

}  // namespace perigee::plot
