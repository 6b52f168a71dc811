#include "curves/run_log.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace perigee::plot {

namespace {

void append(std::vector<Point>& points, double step, nlohmann::json const& value) {
    while (!points.empty() && points.back().x >= step) points.pop_back();
    points.push_back({step, value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN()});
}

bool has_number(std::vector<Point> const& points) { return std::any_of(points.begin(), points.end(), is_drawable); }

constexpr double kLargestStep = 1e15;  // whole numbers up to here are exact
constexpr double kLargestValue = 1e200;

/// Calls `use` with each line of a file and whether a newline ends it, in bounded memory: what is beyond
/// kMaxMetricsLine of a line is dropped, and the line is given as empty JSON text, which nothing reads.
template <class Use>
void for_each_line(ReadableFile& file, Use&& use) {
    constexpr int64_t kPieceBytes = int64_t{1} << 18;
    std::string piece, line;
    bool too_long = false;
    auto const finish = [&](bool ended) {
        use(too_long ? std::string_view("?") : std::string_view(line), ended);
        line.clear();
        too_long = false;
    };
    for (int64_t at = 0; at < file.size(); at += std::ssize(piece)) {
        piece.resize(static_cast<size_t>(std::min(kPieceBytes, file.size() - at)));
        file.read_at(at, std::as_writable_bytes(std::span(piece)));
        for (size_t begin = 0; begin < piece.size();) {
            size_t const newline = piece.find('\n', begin);
            size_t const end = std::min(newline, piece.size());
            if (line.size() + (end - begin) > kMaxMetricsLine) too_long = true;
            if (!too_long) line.append(piece, begin, end - begin);
            begin = end + 1;
            if (newline != std::string::npos) finish(true);
        }
    }
    if (!line.empty() || too_long) finish(false);
}

bool has_step(nlohmann::json const& entry) {
    if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number()) return false;
    double const step = entry["step"].get<double>();
    return step >= 0 && step <= kLargestStep;
}

}  // namespace

bool is_drawable(Point point) { return std::isfinite(point.x) && std::abs(point.y) <= kLargestValue; }

RunLog read_run(FileSystem& files, std::string const& path, std::string const& key) {
    bool const is_folder = files.exists(path) && files.is_directory(path);
    Path const file = is_folder ? Path(path) / "metrics.jsonl" : Path(path);
    if (!files.exists(file))
        fail(Category::data, "{}: no such file; expected a run folder with metrics.jsonl", file.string());

    RunLog run;
    run.name = is_folder ? files.resolve(path).filename().string() : file.filename().string();
    std::set<std::string> keys;
    std::string const eval_key = "eval_" + key;
    auto const stream = files.open(file);
    for_each_line(*stream, [&](std::string_view line, bool ended) {
        if (line.empty()) return;
        auto const entry = nlohmann::json::parse(line, nullptr, false);
        if (!has_step(entry)) {
            if (ended) ++run.unreadable_lines;  // one without its end is being written
            return;
        }
        double const step = entry["step"].get<double>();
        for (auto const& [name, value] : entry.items())
            if (value.is_number()) keys.insert(name);
        if (entry.contains(key)) append(run.train, step, entry[key]);
        if (entry.contains(eval_key)) append(run.eval, step, entry[eval_key]);
    });
    if (!has_number(run.train) && !has_number(run.eval))
        fail(Category::data, "{}: holds no value of '{}'; found: {}", file.string(), key,
             keys.empty() ? "nothing" : fmt::format("{}", fmt::join(keys, ", ")));
    return run;
}

}  // namespace perigee::plot
