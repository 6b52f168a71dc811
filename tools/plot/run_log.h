// What `plot` reads: one value per step from a run's metrics.jsonl, as far as it can be read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace perigee::plot {

/// y is NaN where the run logged a value that is not a number.
struct Point {
    double x = 0;
    double y = 0;
};

struct RunLog {
    std::string name;          ///< of the run's folder
    std::vector<Point> train;  ///< steps rise strictly
    std::vector<Point> eval;
    int64_t unreadable_lines = 0;  ///< not counting a last line that is still being written
};

/// Reads `key` (and `eval_` + key) from `path`/metrics.jsonl, or from `path` itself when it is a file. A step that
/// comes again, as after a resume, replaces all from there on. Throws Category::data when there is nothing to draw.
RunLog read_run(std::string const& path, std::string const& key);

}  // namespace perigee::plot
