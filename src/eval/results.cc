#include "eval/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "eval/pass_rates.h"
#include "eval/position.h"

namespace perigee {

namespace {

std::string field(char const* name, double value) {
    return std::isfinite(value) ? fmt::format(R"(,"{}":{:.17g})", name, value) : fmt::format(R"(,"{}":null)", name);
}
std::string field(char const* name, int64_t value) { return fmt::format(R"(,"{}":{})", name, value); }
std::string field(char const* name, bool value) { return fmt::format(R"(,"{}":{})", name, value); }
std::string field(char const* name, std::string const& value) { return fmt::format(R"(,"{}":"{}")", name, value); }

/// Nothing where there are none.
std::string field(char const* name, std::vector<int32_t> const& values) {
    return values.empty() ? "" : fmt::format(R"(,"{}":[{}])", name, fmt::join(values, ","));
}

template <class T>
std::string field(char const* name, std::optional<T> const& value) {
    return value ? field(name, *value) : "";
}

/// "512-1023"
std::string range(int64_t begin, int64_t end) { return fmt::format("{}-{}", begin, end - 1); }

/// Loss by attention; classes and bins added up as asked.
class PositionView {
  public:
    explicit PositionView(std::span<Measurement const> measurements) : measurements_(measurements) {
        for (Measurement const& m : measurements)
            if (std::ranges::find(arms_, m.attention) == arms_.end()) arms_.push_back(m.attention);
    }
    std::vector<std::string> const& arms() const { return arms_; }

    template <class Takes>
    LossSum sum(std::string const& arm, Takes&& takes) const {
        LossSum sum;
        for (Measurement const& m : measurements_)
            if (m.attention == arm && takes(m)) sum += {m.weight, m.nll, m.bytes.value_or(0)};
        return sum;
    }

  private:
    std::span<Measurement const> measurements_;
    std::vector<std::string> arms_;
};

std::string cell(double value) {
    if (!std::isfinite(value)) return fmt::format("{:>9}", "-");
    return fmt::format("{:9.4f}", std::abs(value) < 5e-5 ? 0.0 : value);  // no -0.0000
}

/// One line: losses of the arms and, of two, their difference.
template <class Takes>
std::string losses(PositionView const& view, Takes&& takes) {
    std::string text;
    std::vector<double> means;
    for (std::string const& arm : view.arms()) {
        means.push_back(view.sum(arm, takes).mean());
        text += cell(means.back());
    }
    if (means.size() == 2) text += cell(means[0] - means[1]);
    return text;
}

std::string arm_names(PositionView const& view) {
    std::string text;
    for (size_t i = 0; i < view.arms().size(); ++i)
        text += fmt::format(" {:>8}", view.arms().size() == 1 || view.arms()[i] == "full" ? "full" : "run");
    return view.arms().size() == 2 ? text + fmt::format(" {:>8}", "differ") : text;
}

bool is_far(Measurement const& m) { return m.task == to_string(Repeat::far); }

std::string whole_loss(PositionView const& view, std::string const& arm) {
    LossSum const sum = view.sum(arm, [](Measurement const&) { return true; });
    std::string text = fmt::format("{}: loss {:.5f}, perplexity {:.3f}", arm, sum.mean(), std::exp(sum.mean()));
    if (sum.bytes > 0) text += fmt::format(", {:.4f} bits per byte", bits_per_byte(sum.nll, sum.bytes));
    return text + "\n";
}

}  // namespace

std::string to_json(Measurement const& m) {
    return fmt::format(R"({{"suite":"{}")", m.suite) + field("step", m.step) + field("attention", m.attention) +
           field("task", m.task) + field("length", m.length) + field("number", m.number) + field("depth", m.depth) +
           field("layer", m.layer) + field("mass", m.mass) + field("begin", m.begin) + field("end", m.end) +
           field("scorer", m.scorer) + field("weight", m.weight) + field("nll", m.nll) + field("bytes", m.bytes) +
           field("correct", m.correct) + field("passed", m.passed) + field("prompt", m.prompt) +
           field("answer", m.answer) + "}";
}

double bits_per_byte(double nll, double bytes) { return nll / std::numbers::ln2 / bytes; }

std::string position_table(std::span<Measurement const> measurements) {
    PositionView const view(measurements);
    if (view.arms().empty()) return "";
    std::map<int64_t, int64_t> bins;
    for (Measurement const& m : measurements) bins.emplace(m.begin.value(), m.end.value());
    std::string const names = arm_names(view);
    std::string text = fmt::format("loss by position, step {}\n", measurements.front().step);
    for (std::string const& arm : view.arms()) text += whole_loss(view, arm);
    text += fmt::format("{:>15}{:<{}} | far repeats\n", "", " all tokens", names.size());
    text += fmt::format("{:>15}{} |  share{}\n", "positions", names, names);
    for (auto const& [begin, end] : bins) {
        auto const in_bin = [b = begin](Measurement const& m) { return m.begin == b; };
        auto const far_in_bin = [b = begin](Measurement const& m) { return m.begin == b && is_far(m); };
        double const share = view.sum(view.arms()[0], far_in_bin).weight / view.sum(view.arms()[0], in_bin).weight;
        text += fmt::format("{:>15}{} | {:>5}%{}\n", range(begin, end), losses(view, in_bin),
                            std::isfinite(share) ? fmt::format("{:.1f}", 100 * share) : "-", losses(view, far_in_bin));
    }
    return text;
}

std::string mass_table(std::span<Measurement const> measurements) {
    if (measurements.empty()) return "";
    std::vector<std::string> tasks;
    std::map<std::pair<int64_t, std::string>, std::pair<double, double>> sums;  // mass and weight
    int64_t layers = 0;
    for (Measurement const& m : measurements) {
        if (std::ranges::find(tasks, m.task) == tasks.end()) tasks.push_back(m.task);
        auto& [mass, weight] = sums[{m.layer.value(), m.task}];
        mass += m.mass.value(), weight += m.weight;
        layers = std::max(layers, *m.layer + 1);
    }
    std::string text = fmt::format("mass, {}, step {}: % inside the blocks\n{:>7} |", measurements.front().attention,
                                   measurements.front().step, "layer");
    auto const width = [](std::string const& task) { return std::max<size_t>(8, task.size() + 2); };
    for (std::string const& task : tasks) text += fmt::format("{:>{}}", task, width(task));
    text += "\n";
    for (int64_t layer = 0; layer < layers; ++layer) {
        text += fmt::format("{:>7} |", layer);
        for (std::string const& task : tasks) {
            auto const& [mass, weight] = sums[{layer, task}];
            text += fmt::format("{:>{}.2f}", 100 * mass / weight, width(task));
        }
        text += "\n";
    }
    return text;
}

std::string needle_table(std::span<Measurement const> measurements) {
    if (measurements.empty()) return "";
    PassRates const rates(measurements);
    std::string text = fmt::format("needle, {}, step {}: % passed by depth in %\n{:<7} {:>8} |",
                                   measurements.front().attention, measurements.front().step, "task", "length");
    for (double const depth : rates.depths()) text += fmt::format("{:>4.0f}", 100 * depth);
    text += "\n";
    for (std::string const& task : rates.tasks())
        for (int64_t const length : rates.lengths()) {
            text += fmt::format("{:<7} {:>8} |", task, length);
            for (double const depth : rates.depths())
                text += fmt::format("{:>4.0f}", percent(rates.share(task, length, depth)));
            text += "\n";
        }
    return text;
}

std::string ruler_table(std::span<Measurement const> measurements) {
    if (measurements.empty()) return "";
    PassRates const rates(measurements);
    std::string text = fmt::format("ruler, {}, step {}: % passed\n{:>8} |", measurements.front().attention,
                                   measurements.front().step, "length");
    for (std::string const& task : rates.tasks()) text += fmt::format("{:>10}", task);
    text += "  mean\n";
    for (int64_t const length : rates.lengths()) {
        text += fmt::format("{:>8} |", length);
        double sum = 0;
        for (std::string const& task : rates.tasks()) {
            double const share = rates.share(task, length);
            text += fmt::format("{:>10.0f}", percent(share));
            sum += share;
        }
        text += fmt::format("{:>6.0f}\n", percent(sum / static_cast<double>(rates.tasks().size())));
    }
    return text;
}

}  // namespace perigee
