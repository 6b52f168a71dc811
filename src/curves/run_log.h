// What `perigee plot` and `perigee report` read: values per step from a run's metrics.jsonl, as far as it can be read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
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

/// All values of a run by their key.
struct Metrics {
    std::string name;                                               ///< of the run's folder
    std::map<std::string, std::vector<Point>, std::less<>> series;  ///< steps rise strictly; keys with any number
    int64_t unreadable_lines = 0;  ///< not counting a last line that is still being written
    std::string held_out = {};     ///< `eval_data` of the last evaluation
    double held_out_since = 0;     ///< step of the first evaluation on it; losses before do not compare
};

/// Reads `path`/metrics.jsonl, or `path` itself when it is a file. A step that comes again, as after a resume, replaces
/// all from there on. A line is unreadable when it is no JSON object of at most kMaxMetricsLine bytes, or its step no
/// number from 0 to 10^15. Throws Category::data where there is no such file.
Metrics read_metrics(FileSystem& files, std::string const& path);

/// Calls `use` with each line of a file and whether a newline ends it, in bounded memory: a line of more than
/// kMaxMetricsLine is given as "?", which is no JSON.
void for_each_line(ReadableFile& file, std::function<void(std::string_view line, bool ended)> const& use);

struct RunLog {
    std::string name;          ///< of the run's folder
    std::vector<Point> train;  ///< steps rise strictly
    std::vector<Point> eval;
    int64_t unreadable_lines = 0;  ///< not counting a last line that is still being written
};

/// `key` (and `eval_` + key) of read_metrics(path). Throws Category::data when there is nothing to draw.
RunLog read_run(FileSystem& files, std::string const& path, std::string const& key);

/// Gives runs of one name the paths that they were read from as names.
template <class Run>
void tell_apart(std::vector<Run>& runs, std::vector<std::string> const& paths) {
    std::map<std::string, size_t> count;
    for (Run const& run : runs) ++count[run.name];
    for (size_t i = 0; i < runs.size(); ++i)
        if (count[runs[i].name] > 1) runs[i].name = paths[i];
}

inline constexpr size_t kMaxMetricsLine = size_t{1} << 20;

}  // namespace perigee::plot
