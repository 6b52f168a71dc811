#include "curves/run_log.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"

namespace perigee::plot {

namespace {

bool has_number(std::vector<Point> const& points) { return std::ranges::any_of(points, is_drawable); }

constexpr double kLargestStep = 1e15;  // whole numbers up to here are exact
constexpr double kLargestValue = 1e200;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// The values of one line, without building it: numbers of the object itself, and NaN for whatever else it holds.
class LineValues final : public nlohmann::json_sax<nlohmann::json> {
  public:
    struct Value {
        std::string key;
        double number = kNaN;
    };

    /// False where the line is no JSON object with a step.
    bool read(std::string_view line) {
        count_ = 0;
        depth_ = 0;
        step_ = -1;
        is_object_ = false;
        held_out_.clear();
        return nlohmann::json::sax_parse(line, this) && is_object_ && step_ >= 0 && step_ <= kLargestStep;
    }
    std::span<Value const> values() const { return {values_.data(), count_}; }
    double step() const { return step_; }
    /// The line's `eval_data`; empty without one.
    std::string const& held_out() const { return held_out_; }

    bool null() override { return take(kNaN); }
    bool boolean(bool) override { return take(kNaN); }
    bool number_integer(number_integer_t value) override { return take(static_cast<double>(value)); }
    bool number_unsigned(number_unsigned_t value) override { return take(static_cast<double>(value)); }
    bool number_float(number_float_t value, string_t const&) override { return take(value); }
    bool string(string_t& text) override {
        if (depth_ == 1 && is_object_ && !is_step_ && values_[count_].key == "eval_data") held_out_.swap(text);
        return take(kNaN);
    }
    bool binary(binary_t&) override { return take(kNaN); }
    bool start_object(size_t) override {
        if (depth_ == 0) is_object_ = true;
        take(kNaN);
        ++depth_;
        return true;
    }
    bool end_object() override { return leave(); }
    bool start_array(size_t) override {
        take(kNaN);
        ++depth_;
        return true;
    }
    bool end_array() override { return leave(); }
    bool key(string_t& name) override {
        if (depth_ != 1) return true;
        is_step_ = name == "step";
        if (is_step_) return true;
        if (count_ == values_.size()) values_.emplace_back();
        values_[count_].key.swap(name);
        return true;
    }
    bool parse_error(size_t, std::string const&, nlohmann::json::exception const&) override { return false; }

  private:
    bool take(double number) {
        if (depth_ != 1 || !is_object_) return true;
        if (is_step_)
            step_ = std::isnan(number) ? -1 : number;
        else
            values_[count_++].number = number;
        return true;
    }
    bool leave() {
        --depth_;
        return true;
    }

    std::vector<Value> values_;  ///< kept from line to line, for their memory
    size_t count_ = 0;
    int64_t depth_ = 0;
    double step_ = -1;
    std::string held_out_;
    bool is_object_ = false;
    bool is_step_ = false;
};

void append(std::vector<Point>& points, double step, double value) {
    while (!points.empty() && points.back().x >= step) points.pop_back();
    points.push_back({step, value});
}

Path metrics_file(FileSystem& files, std::string const& path) {
    bool const is_folder = files.exists(path) && files.is_directory(path);
    return is_folder ? Path(path) / "metrics.jsonl" : Path(path);
}

}  // namespace

void for_each_line(ReadableFile& file, std::function<void(std::string_view line, bool ended)> const& use) {
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

bool is_drawable(Point point) { return std::isfinite(point.x) && std::abs(point.y) <= kLargestValue; }

Metrics read_metrics(FileSystem& files, std::string const& path) {
    Path const file = metrics_file(files, path);
    if (!files.exists(file))
        fail(Category::data, "{}: no such file; expected a run folder with metrics.jsonl", file.string());
    Metrics run;
    run.name = file == Path(path) ? file.filename().string() : files.resolve(path).filename().string();
    LineValues line_values;
    auto const stream = files.open(file);
    for_each_line(*stream, [&](std::string_view line, bool ended) {
        if (line.empty()) return;
        if (!line_values.read(line)) {
            if (ended) ++run.unreadable_lines;  // one without its end is being written
            return;
        }
        if (std::string const& data = line_values.held_out(); !data.empty() && data != run.held_out)
            run.held_out = data, run.held_out_since = line_values.step();
        for (auto const& [key, number] : line_values.values()) {
            auto found = run.series.find(key);
            if (found == run.series.end()) found = run.series.emplace(key, std::vector<Point>()).first;
            append(found->second, line_values.step(), number);
        }
    });
    std::erase_if(run.series, [](auto const& entry) {
        return std::ranges::all_of(entry.second, [](Point point) { return std::isnan(point.y); });
    });
    return run;
}

RunLog read_run(FileSystem& files, std::string const& path, std::string const& key) {
    Metrics metrics = read_metrics(files, path);
    RunLog run{.name = metrics.name, .train = {}, .eval = {}, .unreadable_lines = metrics.unreadable_lines};
    for (auto const& [name, points] : {std::pair{key, &run.train}, {"eval_" + key, &run.eval}})
        if (auto const found = metrics.series.find(name); found != metrics.series.end()) *points = found->second;
    if (has_number(run.train) || has_number(run.eval)) return run;
    if (!run.train.empty() || !run.eval.empty())
        fail(
            Category::data, "{}: no value of '{}' can be drawn: expected one between {} and {}, found none in {} lines",
            metrics_file(files, path).string(), key, -kLargestValue, kLargestValue, run.train.size() + run.eval.size());
    std::vector<std::string> keys;
    for (auto const& [name, points] : metrics.series) keys.push_back(name);
    if (!keys.empty()) keys.insert(std::ranges::upper_bound(keys, "step"), "step");
    fail(Category::data, "{}: holds no value of '{}'; found: {}", metrics_file(files, path).string(), key,
         keys.empty() ? "nothing" : fmt::format("{}", fmt::join(keys, ", ")));
}

}  // namespace perigee::plot
