#include "commands/report/run_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/printable.h"
#include "commands/report/page_parts.h"
#include "config/config.h"
#include "curves/chart.h"
#include "curves/run_log.h"

namespace perigee::report {

namespace {

using nlohmann::json;

constexpr size_t kPointsOfPage = 40'000;       // of about 25 bytes each
constexpr size_t kTrendPointsOfPage = 30'000;  // of about 15
constexpr size_t kMostStretches = 1000, kFewestStretches = 25;
constexpr size_t kMostSamples = 20, kMostWarnings = 200;

/// What of each series a page has room for.
struct Room {
    size_t stretches;
    size_t trend_points;
};

Room room_for(size_t series) {
    series = std::max<size_t>(series, 1);
    return {std::clamp(kPointsOfPage / 2 / series, kFewestStretches, kMostStretches),
            std::max(kTrendPointsOfPage / series, kFewestStretches)};
}

std::vector<plot::Point> thinned(std::vector<plot::Point> const& points, size_t most) {
    std::vector<plot::Point> kept;
    size_t const every = (points.size() + most - 1) / most;
    for (size_t i = 0; i < points.size(); i += every) kept.push_back(points[i]);
    return kept;
}

/// Numbers that read back as the same numbers.
std::string array(std::vector<plot::Point> const& points, double plot::Point::*member, std::string_view format) {
    std::string text = "[";
    for (plot::Point const& point : points) {
        if (text.size() > 1) text += ',';
        double const value = point.*member;
        text += std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "null";
    }
    return text + "]";
}

/// `seconds`: of each step, where the values are rates; then the mean is over time.
std::string series_json(std::vector<plot::Point> const& all, Room const& room,
                        std::vector<plot::Point> const* seconds) {
    using plot::Point;
    std::vector<Point> const points = plot::drawable(all), kept = plot::extremes(points, room.stretches),
                             trend = plot::trend(points);
    double sum = 0, weights = 0;
    size_t step = 0;
    for (Point const& point : points) {
        while (seconds && step < seconds->size() && (*seconds)[step].x < point.x) ++step;
        bool const timed = seconds && step < seconds->size() && (*seconds)[step].x == point.x;
        double const weight = !seconds ? 1 : timed ? (*seconds)[step].y : 0;
        sum += weight * point.y, weights += weight;
    }
    std::string text = fmt::format(R"({{"mean":{:.6g},"x":{},"y":{})", weights > 0 ? sum / weights : 0.0,
                                   array(kept, &Point::x, "{:.0f}"), array(kept, &Point::y, "{}"));
    if (!std::ranges::equal(trend, points, {}, &Point::y, &Point::y)) {
        std::vector<Point> const line = thinned(trend, room.trend_points);
        text += fmt::format(R"(,"tx":{},"ty":{})", array(line, &Point::x, "{:.1f}"), array(line, &Point::y, "{:.6g}"));
    }
    return text + "}";
}

/// "train.steps" and its value for each line of what to_yaml() writes; "data.train.0.path" for what a list has.
json flat_config(std::string_view yaml) {
    json flat = json::object();
    struct Parent {
        size_t indent;
        std::string name;
        int items = 0;
    };
    std::vector<Parent> parents;
    for (size_t begin = 0; begin < yaml.size();) {
        size_t const end = std::min(yaml.find('\n', begin), yaml.size());
        std::string_view const line = yaml.substr(begin, end - begin);
        begin = end + 1;
        size_t indent = line.find_first_not_of(' ');
        if (indent == line.npos || line[indent] == '#') continue;
        while (!parents.empty() && parents.back().indent >= indent) parents.pop_back();
        if (line.substr(indent).starts_with("- ") && !parents.empty()) {  // an item, whose first key follows
            parents.push_back({indent, std::to_string(parents.back().items++)});
            indent += 2;
        }
        std::string key;
        for (Parent const& parent : parents) key += parent.name + ".";
        std::string_view const rest = line.substr(indent);
        size_t const colon = rest.find(": ");
        if (rest.ends_with(':'))
            parents.push_back({indent, std::string(rest.substr(0, rest.size() - 1))});
        else if (colon == rest.npos)
            flat[key.substr(0, key.find_last_not_of('.') + 1)] = std::string(rest);
        else
            flat[key + std::string(rest.substr(0, colon))] = std::string(rest.substr(colon + 2));
    }
    return flat;
}

/// The last lines that `keep` makes something of.
template <class Keep>
json last_lines(FileSystem& files, Path const& path, size_t most, Keep&& keep) {
    std::deque<json> kept;
    if (files.exists(path)) {
        auto const file = files.open(path);
        plot::for_each_line(*file, [&](std::string_view line, bool) {
            json value = keep(line);
            if (value.is_null()) return;
            if (kept.size() == most) kept.pop_front();
            kept.push_back(std::move(value));
        });
    }
    return json(std::vector<json>(kept.begin(), kept.end()));
}

json object_of(std::string_view line) {
    json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
    return value.is_object() ? value : json();
}

json picked(json const& record, std::initializer_list<char const*> keys) {
    json some = json::object();
    for (char const* key : keys)
        if (record.contains(key)) some[key] = record[key];
    return some;
}

bool has_numbers(json const& record, std::initializer_list<char const*> keys) {
    return std::ranges::all_of(keys, [&](char const* key) { return record.contains(key) && record[key].is_number(); });
}

/// A record of suites.jsonl that can be added up.
json measurement_of(std::string_view line) {
    json const value = object_of(line);
    json const suite = value.is_null() ? value : value.value("suite", json());
    if (suite == "position") return has_numbers(value, {"begin", "end", "weight", "nll"}) ? value : json();
    if (suite != "needle" && suite != "ruler") return {};
    bool const judged = value.contains("passed") && value["passed"].is_boolean();
    return judged && has_numbers(value, {"length", "weight"}) ? value : json();
}

/// Sums of suites over the items or samples of an evaluation. Of evaluations of one suite with the same attention, step
/// and overrides the last counts.
class SuiteSums {
  public:
    void add(std::string_view line) {
        json const record = measurement_of(line);
        if (record.is_null()) return;
        json name = picked(record, {"suite", "attention", "step", "overrides"});
        name.emplace("overrides", "");  // records of older programs have none
        json const eval = picked(record, {"eval"});
        json const place = picked(record, {"number", "task", "begin", "length", "depth"});
        auto found = std::ranges::find(evaluations_, name, &Evaluation::name);
        if (found == evaluations_.end()) found = evaluations_.insert(found, Evaluation{});
        // Another evaluation begins. Records without its number show that by coming to the first place again.
        if (found->eval != eval || found->first_place == place) *found = {name, eval, place, {}};
        bool const is_item = record["suite"] != "position";
        json const about = is_item ? picked(record, {"task", "length", "depth"}) : picked(record, {"begin", "end"});
        Sum& sum = found->sums[about];
        sum.weight += record["weight"].get<double>();
        sum.nll += has_numbers(record, {"nll"}) ? record["nll"].get<double>() : std::nan("");
        sum.items += 1;
        sum.passed += is_item && record["passed"].get<bool>() ? 1 : 0;
    }
    /// {attention, step, overrides, begin, end, weight, nll} for each bin of suite `position`, by position.
    json positions() const {
        json all = sums_where([](json const& suite) { return suite == "position"; });
        for (json& one : all) one.erase("suite"), one.erase("items"), one.erase("passed");
        return all;
    }
    /// {suite, attention, step, overrides, task, length, depth, weight, nll, items, passed} of the other suites.
    json items() const {
        return sums_where([](json const& suite) { return suite != "position"; });
    }

  private:
    struct Sum {
        double weight = 0, nll = 0;
        int64_t items = 0, passed = 0;
    };
    struct Evaluation {
        json name, eval, first_place;
        std::map<json, Sum> sums;  ///< by what they are about
    };
    template <class Of>
    json sums_where(Of&& of) const {
        json all = json::array();
        for (Evaluation const& one : evaluations_) {
            if (!of(one.name["suite"])) continue;
            for (auto const& [about, sum] : one.sums) {
                all.push_back(one.name);
                all.back().update(about);
                all.back().update(
                    {{"weight", sum.weight}, {"nll", sum.nll}, {"items", sum.items}, {"passed", sum.passed}});
            }
        }
        return all;
    }
    std::vector<Evaluation> evaluations_;
};

SuiteSums suites_of(FileSystem& files, Path const& path) {
    SuiteSums sums;
    if (files.exists(path))
        plot::for_each_line(*files.open(path), [&](std::string_view line, bool) { sums.add(line); });
    return sums;
}

/// Of lines of a log, one after the other: what follows a warning without a time of its own belongs to it.
class Warnings {
  public:
    void add(std::string_view line) {
        bool const goes_on = line.starts_with(' ');
        if (!goes_on) warns_ = line.find("warning: ") != line.npos || line.find("error: ") != line.npos;
        if (!warns_) return;
        std::string text = printable(std::string(line));
        if (goes_on && !found_.empty()) {
            found_.back() += "\n" + text;
            return;
        }
        if (found_.size() == kMostWarnings) found_.pop_front();
        found_.push_back(std::move(text));
    }
    json found() const { return std::vector<std::string>(found_.begin(), found_.end()); }

  private:
    std::deque<std::string> found_;
    bool warns_ = false;
};

json warnings_of(FileSystem& files, Path const& path) {
    Warnings warnings;
    if (files.exists(path))
        plot::for_each_line(*files.open(path), [&](std::string_view line, bool) { warnings.add(line); });
    return warnings.found();
}

/// The lowest held-out loss, of those on the data of the last evaluation.
json best_loss(plot::Metrics const& run) {
    json best;
    auto const losses = run.series.find("eval_loss");
    if (losses == run.series.end()) return best;
    for (plot::Point const& point : plot::drawable(losses->second))
        if (point.x >= run.held_out_since && (best.is_null() || point.y < best.get<double>())) best = point.y;
    return best;
}

/// Of blocks.jsonl, where every layer has a square of shares.
json blocks_of(std::string_view line) {
    json value = object_of(line);
    if (value.is_null() || !value.contains("layers") || !value["layers"].is_array()) return {};
    for (json const& layer : value["layers"]) {
        if (!layer.is_object() || !layer.contains("map") || !layer["map"].is_array()) return {};
        for (json const& row : layer["map"])
            if (!row.is_array() || row.size() != layer["map"].size()) return {};
    }
    return value;
}

std::string text_of(FileSystem& files, Path const& path) {
    constexpr int64_t kMost = int64_t{1} << 20;
    return files.exists(path) && files.file_size(path) <= kMost ? files.read_text(path, kMost) : "";
}

std::string dumped(json const& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); }

std::string run_json(FileSystem& files, std::string const& path, plot::Metrics const& run, Room const& room) {
    Path const folder = files.is_directory(path) ? Path(path) : Path(path).parent_path();
    std::string text = fmt::format(R"({{"name":{},"series":{{)", dumped(printable(run.name)));
    auto const timed = run.series.find("seconds");
    auto const seconds = timed == run.series.end() ? std::vector<plot::Point>() : plot::drawable(timed->second);
    constexpr auto kRates = std::to_array<std::string_view>({"tokens_per_s", "tflops", "mfu"});
    for (auto const& [key, points] : run.series) {
        if (text.back() == '}') text += ',';
        bool const over_time = !seconds.empty() && std::ranges::find(kRates, key) != kRates.end();
        text += fmt::format("{}:{}", dumped(printable(key)), series_json(points, room, over_time ? &seconds : nullptr));
    }
    json const blocks = last_lines(files, folder / "blocks.jsonl", 1, blocks_of);
    json const facts = object_of(text_of(files, folder / "run.json"));
    SuiteSums const suites = suites_of(files, folder / "suites.jsonl");
    text += fmt::format(
        R"(}},"held_out":{},"best_loss":{},"config":{},"facts":{},"position":{},"items":{},"blocks":{},"samples":{},"warnings":{}}})",
        dumped(printable(run.held_out)), dumped(best_loss(run)),
        dumped(flat_config(text_of(files, folder / "config.yaml"))), facts.is_null() ? "{}" : dumped(facts),
        dumped(suites.positions()), dumped(suites.items()), blocks.empty() ? "null" : dumped(blocks[0]),
        dumped(last_lines(files, folder / "samples.jsonl", kMostSamples, object_of)),
        dumped(warnings_of(files, folder / "log.txt")));
    return text;
}

/// A folder that suites alone wrote to has no metrics.
plot::Metrics metrics_of(FileSystem& files, std::string const& path) {
    Path const folder = path;
    if (files.is_directory(folder) && !files.exists(folder / "metrics.jsonl") && files.exists(folder / "suites.jsonl"))
        return {.name = files.resolve(folder).filename().string(), .series = {}, .unreadable_lines = 0};
    return plot::read_metrics(files, path);
}

/// "</script>" inside a string would end the script.
std::string for_html(std::string const& text) {
    std::string result;
    for (char const c : text) c == '<' ? result += "\\u003c" : result += c;
    return result;
}

}  // namespace

Runs read_runs(FileSystem& files, std::vector<std::string> const& folders, bool live) {
    Runs runs;
    std::vector<plot::Metrics> metrics;
    size_t series = 0;
    for (std::string const& folder : folders) {
        metrics.push_back(metrics_of(files, folder));
        series += metrics.back().series.size();
        if (int64_t const lines = metrics.back().unreadable_lines; lines > 0)
            runs.warnings.push_back(fmt::format("{}: {} unreadable lines left out", printable_name(folder), lines));
    }
    plot::tell_apart(metrics, folders);
    Room const room = room_for(series);
    std::string list;
    for (size_t i = 0; i < folders.size(); ++i)
        list += (i > 0 ? "," : "") + run_json(files, folders[i], metrics[i], room);
    runs.json = for_html(fmt::format(R"({{"live":{},"defaults":{},"runs":[{}]}})", live,
                                     dumped(flat_config(to_yaml(RunOptions{}))), list));
    return runs;
}

std::string page(std::string const& json) {
    return fmt::format(
        R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>perigee report</title><link rel="icon" href="data:,"><style>
{}</style></head><body>
<header><h1 id="title"></h1><button id="theme">light / dark</button></header><main id="body"></main>
<script id="data" type="application/json">{}</script>
<script>
{}</script></body></html>
)",
        kStyle, json, kScript);
}

}  // namespace perigee::report
