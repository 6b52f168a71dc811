// Shares of passed items: what the tables and the heat map show.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "eval/results.h"

namespace perigee {

/// Of a share, to be rounded to whole numbers: it shows 100 only where all pass, and 0 only where none does.
inline double percent(double share) {
    return share > 0 && share < 1 ? std::clamp(100 * share, 1.0, 99.0) : 100 * share;
}

class PassRates {
  public:
    explicit PassRates(std::span<Measurement const> measurements) {
        auto const note = [](auto& list, auto const& value) {
            for (auto const& known : list)
                if (known == value) return;
            list.push_back(value);
        };
        for (Measurement const& m : measurements) {
            note(tasks_, m.task);
            note(lengths_, m.length);
            if (m.depth) note(depths_, *m.depth);
            Count& count = counts_[{m.task, m.length, m.depth.value_or(0)}];
            count.items += 1;
            count.passed += m.passed.value_or(false) ? 1 : 0;
        }
    }

    // In the order in which they first came.
    std::vector<std::string> const& tasks() const { return tasks_; }
    std::vector<int64_t> const& lengths() const { return lengths_; }
    std::vector<double> const& depths() const { return depths_; }

    /// NaN where there are no such items.
    double share(std::string const& task, int64_t length, double depth = 0) const {
        auto const found = counts_.find({task, length, depth});
        if (found == counts_.end()) return std::numeric_limits<double>::quiet_NaN();
        return found->second.passed / found->second.items;
    }

  private:
    struct Count {
        double items = 0, passed = 0;
    };
    std::vector<std::string> tasks_;
    std::vector<int64_t> lengths_;
    std::vector<double> depths_;
    std::map<std::tuple<std::string, int64_t, double>, Count> counts_;
};

}  // namespace perigee
