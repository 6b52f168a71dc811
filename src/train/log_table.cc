#include "train/log_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "train/progress.h"

namespace perigee {

namespace {

constexpr int64_t kRowsPerHeader = 20;
constexpr std::string_view kDim = "\x1b[2m", kBold = "\x1b[1m", kRed = "\x1b[1;31m", kPlain = "\x1b[0m";

enum Column : size_t { kStep, kLoss, kNorm, kLr, kSpeed, kMfu, kMemory, kLeft, kColumns };

constexpr std::array<std::string_view, kColumns> kNames = {"step",     "loss", "grad norm",   "lr",
                                                           "tokens/s", "MFU",  "memory/peak", "left"};
/// Of the cells, the space before them included: 77, and two more for a step of nine digits.
constexpr std::array<size_t, kColumns> kWidths = {7, 9, 11, 9, 10, 7, 14, 10};

using Cells = std::array<std::string, kColumns>;

/// At most eight characters.
std::string short_number(double x, int decimals) {
    if (x != 0 && std::abs(x) < 1e-3) return fmt::format("{:.1e}", x);
    return std::abs(x) < 1000 ? fmt::format("{:.{}f}", x, decimals) : fmt::format("{:.3g}", x);
}

std::string step_cell(int64_t step) {
    return step < 1'000'000'000 ? std::to_string(step) : fmt::format("{:.3g}", static_cast<double>(step));
}

std::string speed_cell(double tokens_per_s) {
    if (!(tokens_per_s < 1e7)) return fmt::format("{:.3g}", tokens_per_s);
    return tokens_per_s < 10 ? fmt::format("{:.2f}", tokens_per_s) : format_count(std::llround(tokens_per_s));
}

std::string mfu_cell(double percent) {
    return percent < 1000 ? fmt::format("{:.1f}%", percent) : fmt::format("{:.0g}%", percent);
}

/// Both in the unit of the peak, which is named once: "61.2/72.1GiB".
std::string memory_cell(int64_t used, int64_t peak) {
    std::string const most = format_bytes(peak);
    auto const unit = static_cast<size_t>(std::ranges::find_if(most, [](char c) { return c > '9'; }) - most.begin());
    double bytes = static_cast<double>(peak), scale = 1;
    for (; std::abs(bytes) >= 999.5; bytes /= 1024) scale *= 1024;
    size_t const dot = most.find('.');
    size_t const decimals = dot == std::string::npos ? 0 : unit - dot - 1;
    return fmt::format("{:.{}f}/{}", static_cast<double>(used) / scale, decimals, most);
}

std::string left_cell(double seconds) {
    constexpr double kHour = 3600, kDay = 24 * kHour;
    if (!(seconds >= 100 * kHour && seconds < 1e4 * kDay))
        return seconds < 100 * kHour ? format_duration(seconds) : "-";
    auto const hours = static_cast<int64_t>(seconds / kHour);
    return fmt::format("{}d {:02}h", hours / 24, hours % 24);
}

Cells cells_of(LogRow const& row) {
    return {step_cell(row.step),
            short_number(row.loss, 4),
            short_number(row.grad_norm, 3),
            fmt::format("{:.1e}", row.lr),
            speed_cell(row.tokens_per_s),
            row.mfu ? mfu_cell(100 * *row.mfu) : "",
            memory_cell(row.memory_bytes, row.memory_peak_bytes),
            row.skipped ? "skipped" : left_cell(row.seconds_left)};
}

LogTable::Line joined(Cells const& cells, std::string_view style, LogRow const& row) {
    LogTable::Line line;
    line.styled = style;
    for (size_t i = 0; i < kColumns; ++i) {
        if (i == kMfu && !row.mfu) continue;
        std::string const cell = fmt::format("{:>{}}", cells[i], kWidths[i]);
        line.plain += cell;
        std::string_view const mark = !style.empty() ? "" : i == kLoss ? kBold : i == kLeft && row.skipped ? kRed : "";
        line.styled += mark.empty() ? cell : fmt::format("{}{}{}", mark, cell, kPlain);
    }
    if (!style.empty()) line.styled += kPlain;
    return line;
}

}  // namespace

std::vector<LogTable::Line> LogTable::lines(LogRow const& row) {
    std::vector<Line> lines;
    if (rows_++ % kRowsPerHeader == 0) {
        Cells names;
        std::ranges::copy(kNames, names.begin());
        lines.push_back(joined(names, kDim, row));
    }
    lines.push_back(joined(cells_of(row), "", row));
    return lines;
}

}  // namespace perigee
