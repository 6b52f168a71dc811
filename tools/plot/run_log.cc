#include "tools/plot/run_log.h"

#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <fstream>
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

bool has_number(std::vector<Point> const& points) {
    for (Point const& p : points)
        if (std::isfinite(p.y)) return true;
    return false;
}

}  // namespace

RunLog read_run(std::string const& path, std::string const& key) {
    namespace fs = std::filesystem;
    fs::path const file = fs::is_directory(path) ? fs::path(path) / "metrics.jsonl" : fs::path(path);
    std::ifstream stream(file);
    if (!stream) fail(Category::data, "{}: cannot be read; expected a run folder with metrics.jsonl", file.string());

    RunLog run;
    fs::path const folder = fs::weakly_canonical(fs::absolute(file)).parent_path();
    run.name = fs::is_directory(path) ? folder.filename().string() : file.filename().string();
    std::set<std::string> keys;
    std::string const eval_key = "eval_" + key;
    for (std::string line; std::getline(stream, line);) {
        if (line.empty()) continue;
        auto const entry = nlohmann::json::parse(line, nullptr, false);
        if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number()) {
            bool const being_written = stream.eof();
            if (!being_written) ++run.unreadable_lines;
            continue;
        }
        double const step = entry["step"].get<double>();
        for (auto const& [name, value] : entry.items())
            if (value.is_number()) keys.insert(name);
        if (entry.contains(key)) append(run.train, step, entry[key]);
        if (entry.contains(eval_key)) append(run.eval, step, entry[eval_key]);
    }
    if (!has_number(run.train) && !has_number(run.eval))
        fail(Category::data, "{}: holds no value of '{}'; found: {}", file.string(), key,
             keys.empty() ? "nothing" : fmt::format("{}", fmt::join(keys, ", ")));
    return run;
}

}  // namespace perigee::plot
