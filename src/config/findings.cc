#include "config/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace perigee {

void Findings::add(Place place, std::string sentence) {
    if (!full()) found_.push_back({place, std::move(sentence)});
}

std::vector<std::string> Findings::lines() const {
    std::vector<Finding> sorted = found_;
    std::stable_sort(sorted.begin(), sorted.end(), [](Finding const& a, Finding const& b) {
        return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
    });
    std::vector<std::string> lines;
    for (Finding const& f : sorted) {
        lines.push_back(places_ == Places::hidden
                            ? fmt::format("{}: {}", source_, f.sentence)
                            : fmt::format("{}:{}:{}: {}", source_, f.place.line, f.place.column, f.sentence));
    }
    if (full()) lines.push_back(fmt::format("{}: reporting stops after {} problems", source_, kMost));
    return lines;
}

}  // namespace perigee
