#include "config/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

namespace perigee {

namespace {

constexpr size_t kMaxEdits = 2;
constexpr size_t kMinPrefix = 3;
constexpr size_t kLongestName = 64;

std::string folded(std::string_view name) {
    std::string result(name);
    for (char& c : result) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
        if (c == '-') c = '_';
    }
    return result;
}

/// Levenshtein's distance, one row at a time.
size_t edits(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < b.size(); ++j) {
            size_t const replaced = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

}  // namespace

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

std::string nearest(std::string_view name, std::vector<std::string> const& known) {
    if (name.empty() || name.size() > kLongestName) return "";
    std::string const wanted = folded(name);
    std::string best;
    size_t fewest = kMaxEdits + 1;
    for (std::string const& candidate : known) {
        size_t const distance = edits(wanted, folded(candidate));
        // Two edits make any two-letter word of any other.
        if (distance < fewest && 2 * distance <= candidate.size()) {
            fewest = distance;
            best = candidate;
        }
    }
    if (!best.empty()) return best;
    for (std::string const& candidate : known) {
        bool const longer = wanted.size() >= kMinPrefix && candidate.starts_with(wanted);
        bool const shorter = candidate.size() >= kMinPrefix && wanted.starts_with(candidate);
        if (longer || shorter) return candidate;
    }
    return "";
}

}  // namespace perigee
