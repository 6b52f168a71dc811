#include "commands/study/results.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "commands/study/runner.h"
#include "config/findings.h"

namespace perigee::study {

namespace {

/// No points where the run never logged the key.
plot::RunLog read_key(FileSystem& files, Study const& study, Run const& run, std::string const& key) {
    try {
        return plot::read_run(files, study.folder(run).string(), key);
    } catch (Error const& error) {
        if (error.category() != Category::data) throw;
        return {};
    }
}

/// Rows of the same settings, cases with any in the order of the grid.
std::vector<std::vector<Row>> by_case(Study const& study, std::vector<Row> const& rows) {
    std::vector<std::vector<Row>> cases;
    std::set<std::vector<std::string>> seen;
    for (Run const& run : study.runs) {
        if (!seen.insert(run.settings).second) continue;
        std::vector<Row> same;
        std::ranges::copy_if(rows, std::back_inserter(same),
                             [&](Row const& row) { return row.run->settings == run.settings; });
        if (!same.empty()) cases.push_back(std::move(same));
    }
    return cases;
}

std::string case_name(Study const& study, Run const& run) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < study.keys.size(); ++i)
        parts.push_back(fmt::format("{} {}", study.label(study.keys[i]), run.settings[i]));
    return fmt::format("{}", fmt::join(parts, ", "));
}

/// With three decimals, or those that a small number needs, or none.
std::string number(double x) {
    double const size = std::abs(x);
    return size >= 1e4              ? fmt::format("{:.0f}", x)
           : size > 0 && size < 0.1 ? fmt::format("{:.3g}", x)
                                    : fmt::format("{:.3f}", x);
}

/// "5.785 (5.781 to 5.788), 2 of 3": mean and range over the seeds that have a value, and how many where not all have.
std::string cell(std::vector<Row> const& rows, size_t metric) {
    std::vector<double> found;
    for (Row const& row : rows)
        if (row.values[metric]) found.push_back(*row.values[metric]);
    if (found.empty()) return "-";
    std::string const part = found.size() < rows.size() ? fmt::format(", {} of {}", found.size(), rows.size()) : "";
    double sum = 0;
    for (double const x : found) sum += x;
    std::string const mean = number(sum / static_cast<double>(found.size()));
    if (found.size() == 1) return mean + part;
    auto const [low, high] = std::ranges::minmax(found);
    return fmt::format("{} ({} to {}){}", mean, number(low), number(high), part);
}

/// One of CSV, as RFC 4180 quotes it.
std::string quoted(std::string const& field) {
    if (field.find_first_of(",\"\r\n") == std::string::npos) return field;
    std::string text = "\"";
    for (char const c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
    return text + "\"";
}

std::string csv_line(std::vector<std::string> const& fields) {
    std::vector<std::string> all;
    for (std::string const& field : fields) all.push_back(quoted(field));
    return fmt::format("{}\n", fmt::join(all, ","));
}

/// A `|` within a field would end it.
std::string markdown_line(std::vector<std::string> const& fields) {
    std::string line = "|";
    for (std::string const& field : fields) {
        line += ' ';
        for (char const c : field) line += c == '|' ? std::string("\\|") : std::string(1, c);
        line += " |";
    }
    return line + "\n";
}

/// A sentence for each key that no run logged, if there are runs.
std::vector<std::string> unlogged_keys(std::set<std::string> const& wanted, std::vector<plot::Metrics> const& runs) {
    std::set<std::string> logged;
    for (plot::Metrics const& run : runs)
        for (auto const& [key, points] : run.series) logged.insert(key);
    std::vector<std::string> const known(logged.begin(), logged.end());
    std::vector<std::string> sentences;
    for (std::string const& key : wanted) {
        if (runs.empty() || logged.contains(key)) continue;
        std::string const guess = nearest(key, known);
        sentences.push_back(fmt::format("no run that has finished logged {}; {}", key,
                                        guess.empty() ? fmt::format("known are {}", fmt::join(known, ", "))
                                                      : fmt::format("did you mean {}?", guess)));
    }
    return sentences;
}

/// Names the first two runs of one seed that evaluated other samples. Seeds may differ: made-up data depends on them.
std::optional<std::string> held_out_differs(std::vector<Row> const& rows, std::vector<plot::Metrics> const& runs) {
    std::map<int64_t, size_t> first;  // of a seed, that evaluated
    for (size_t i = 0; i < rows.size(); ++i) {
        if (runs[i].held_out.empty()) continue;
        size_t const other = first.try_emplace(rows[i].run->seed, i).first->second;
        if (runs[other].held_out != runs[i].held_out)
            return fmt::format("{} and {} were evaluated on different held-out samples: their losses do not compare",
                               rows[other].run->name, rows[i].run->name);
    }
    return std::nullopt;
}

}  // namespace

std::vector<Row> collect(Study const& study, FileSystem& files) {
    std::vector<Row> rows;
    for (Run const& run : study.runs) {
        if (run.settings.empty() || !is_finished(study, run, files)) continue;
        Row row{.run = &run, .values = {}};
        for (std::string const& metric : study.metrics) {
            auto const points = read_key(files, study, run, metric).train;
            bool const known = !points.empty() && std::isfinite(points.back().y);
            row.values.push_back(known ? std::optional(points.back().y) : std::nullopt);
        }
        rows.push_back(std::move(row));
    }
    return rows;
}

std::vector<std::string> cautions(Study const& study, std::vector<Row> const& rows, FileSystem& files) {
    std::set<std::string> wanted(study.metrics.begin(), study.metrics.end());
    wanted.insert(study.figure);
    std::vector<plot::Metrics> runs;
    for (Row const& row : rows) {
        Path const metrics = study.folder(*row.run) / "metrics.jsonl";
        runs.push_back(files.exists(metrics) ? plot::read_metrics(files, metrics.string()) : plot::Metrics());
    }
    std::vector<std::string> sentences = unlogged_keys(wanted, runs);
    bool const held_out = std::ranges::any_of(wanted, [](std::string const& key) { return key.starts_with("eval_"); });
    if (auto sentence = held_out ? held_out_differs(rows, runs) : std::nullopt)
        sentences.push_back(std::move(*sentence));
    return sentences;
}

std::string to_csv(Study const& study, std::vector<Row> const& rows) {
    std::vector<std::string> head = study.keys;
    head.emplace_back("seed");
    head.insert(head.end(), study.metrics.begin(), study.metrics.end());
    std::string text = csv_line(head);
    for (Row const& row : rows) {
        std::vector<std::string> fields = row.run->settings;
        fields.push_back(fmt::format("{}", row.run->seed));
        for (auto const& value : row.values) fields.push_back(value ? fmt::format("{:.17g}", *value) : "");
        text += csv_line(fields);
    }
    return text;
}

std::string to_markdown(Study const& study, std::vector<Row> const& rows) {
    std::vector<std::string> head;
    for (std::string const& key : study.keys) head.push_back(study.label(key));
    head.emplace_back("seeds");
    head.insert(head.end(), study.metrics.begin(), study.metrics.end());
    std::string text = markdown_line(head);
    text += fmt::format("|{}\n", fmt::join(std::vector<std::string>(head.size(), "---|"), ""));
    for (auto const& same : by_case(study, rows)) {
        std::vector<std::string> fields = same.front().run->settings;
        fields.push_back(fmt::format("{}", same.size()));
        for (size_t i = 0; i < study.metrics.size(); ++i) fields.push_back(cell(same, i));
        text += markdown_line(fields);
    }
    return text;
}

std::vector<plot::RunLog> curves(Study const& study, std::vector<Row> const& rows, FileSystem& files) {
    std::vector<plot::RunLog> result;
    for (auto const& same : by_case(study, rows)) {
        std::map<double, std::vector<double>> values;  // of all seeds, by step
        for (Row const& row : same)
            for (plot::Point const p : read_key(files, study, *row.run, study.figure).train)
                if (std::isfinite(p.y)) values[p.x].push_back(p.y);
        plot::RunLog curve{.name = case_name(study, *same.front().run), .train = {}, .eval = {}};
        for (auto const& [step, found] : values) {
            if (found.size() < same.size()) continue;  // a mean over fewer seeds would make a jump
            double sum = 0;
            for (double const x : found) sum += x;
            curve.train.push_back({step, sum / static_cast<double>(found.size())});
        }
        if (!curve.train.empty()) result.push_back(std::move(curve));
    }
    return result;
}

}  // namespace perigee::study
