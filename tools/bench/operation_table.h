// Where the time of a step goes: the operations of the compute queue, by name and shape, beside what the rates of
// `perigee check` reckon for them.
#pragma once

#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "app/step_clock.h"
#include "device/trace.h"
#include "ops/observed_ops.h"
#include "ops/operation_views.h"

namespace perigee {

/// "matmul [8192, 4096] [8192, 14336] [14336, 4096]"; the shapes of all tensors, or of the first where there are many.
inline std::string label_of(Operation const& operation) {
    std::string shapes;
    int views = 0;
    each_view(operation, [&](ConstView view, bool) {
        if (++views <= 3) shapes += " " + view.shape.str();
    });
    return name_of(operation) + shapes;
}

/// Notes each operation in the trace of the device while it runs, under its label.
class LabelledOps final : public ObservedOps {
  public:
    /// `prefix` comes before the labels; `rates` may be null.
    LabelledOps(Ops& inner, std::string prefix, DeviceRates const* rates)
        : ObservedOps(inner), prefix_(std::move(prefix)), rates_(rates) {}

    /// While it rehearses, memory is taken and libraries get ready, and next to nothing is computed: one operation of
    /// each label, none that changes weights, or that reads what was not computed as indices.
    void rehearse(bool on) { rehearses_ = on; }

    void run(Operation const& operation) override {
        if (rehearses_ && !belongs_to_rehearsal(operation)) return;
        if (!device().trace().running()) return ObservedOps::run(operation);
        std::string const label = prefix_ + label_of(operation);
        if (rates_ != nullptr) reckoned_[label] += operation_seconds(operation, rates_);
        InSpan const span(device().queue(), label);
        ObservedOps::run(operation);
    }
    void repeat(std::span<int64_t const> key, std::function<void()> const& body) override {
        if (rehearses_ || device().trace().running()) return body();
        ObservedOps::repeat(key, body);
    }
    std::map<std::string, double> const& reckoned() const { return reckoned_; }  ///< seconds, by label

  private:
    bool belongs_to_rehearsal(Operation const& operation) {
        if (std::holds_alternative<Upload>(operation) || std::holds_alternative<Download>(operation)) return true;
        if (std::holds_alternative<AdamW>(operation) || std::holds_alternative<StochasticRounding>(operation))
            return false;
        auto const* const attention = std::get_if<AttentionBackward>(&operation);
        if (attention != nullptr && std::holds_alternative<BlockSparse>(attention->attended)) return false;
        return rehearsed_.insert(label_of(operation)).second;
    }

    std::string prefix_;
    DeviceRates const* rates_;
    std::map<std::string, double> reckoned_;
    bool rehearses_ = false;
    std::set<std::string> rehearsed_;
};

/// One row for each label, the longest first: calls, milliseconds, and what was reckoned.
inline nlohmann::json operation_table(std::vector<Trace::Span> const& spans,
                                      std::map<std::string, double> const& reckoned) {
    struct Row {
        int64_t calls = 0;
        double seconds = 0;
    };
    std::map<std::string, Row> rows;
    for (Trace::Span const& span : spans) {
        Row& row = rows[span.queue == "compute" ? span.name : span.queue + ": " + span.name];
        row.calls += 1;
        row.seconds += span.seconds;
    }
    std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
    std::ranges::sort(sorted, [](auto const& a, auto const& b) { return a.second.seconds > b.second.seconds; });
    nlohmann::json table = nlohmann::json::array();
    for (auto const& [label, row] : sorted) {
        auto const found = reckoned.find(label);
        double const rates = found == reckoned.end() ? 0 : 1e3 * found->second;
        table.push_back(
            {{"operation", label}, {"calls", row.calls}, {"ms", 1e3 * row.seconds}, {"reckoned_ms", rates}});
    }
    return table;
}

inline void print_operations(nlohmann::json const& table) {
    if (table.empty()) return;
    fmt::print("{:>7}{:>12}{:>12}  operation\n", "calls", "ms", "reckoned");
    for (auto const& row : table)
        fmt::print("{:>7}{:>12.3f}{:>12.3f}  {}\n", row["calls"].get<int64_t>(), row["ms"].get<double>(),
                   row["reckoned_ms"].get<double>(), row["operation"].get<std::string>());
}

}  // namespace perigee
