// The chart in characters: braille cells hold 2 x 4 dots each, so a small drawing shows a smooth line.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/printable.h"
#include "curves/chart.h"

namespace perigee::plot {

namespace {

constexpr std::string_view kVertical = "\u2502", kLeftTick = "\u2524", kCorner = "\u2514", kHorizontal = "\u2500",
                           kBottomTick = "\u252c", kLine = "\u2501", kDiamond = "\u25c6";
constexpr std::array<int, 6> kColorCodes = {36, 33, 35, 32, 34, 31};
constexpr int64_t kFewestColumns = 30;
constexpr int64_t kFewestRows = 6;

std::string braille(unsigned dots) {
    // UTF-8 of U+2800 + dots.
    return {static_cast<char>(0xe2), static_cast<char>(0xa0 | (dots >> 6)), static_cast<char>(0x80 | (dots & 0x3f))};
}

struct Cell {
    unsigned dots = 0;
    bool diamond = false;
    size_t curve = 0;
};

class Canvas {
  public:
    Canvas(int64_t columns, int64_t rows)
        : columns_(columns), rows_(rows), cells_(static_cast<size_t>(columns * rows)) {}

    int64_t dots_wide() const { return 2 * columns_; }
    int64_t dots_high() const { return 4 * rows_; }

    void dot(int64_t x, int64_t y, size_t curve) {
        if (x < 0 || y < 0 || x >= dots_wide() || y >= dots_high()) return;
        static constexpr unsigned kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
        Cell& cell = at(x / 2, y / 4);
        cell.dots |= kBits[y % 4][x % 2];
        cell.curve = curve;
    }
    void diamond(int64_t x, int64_t y, size_t curve) {
        if (x < 0 || y < 0 || x >= dots_wide() || y >= dots_high()) return;
        at(x / 2, y / 4) = {.dots = 0, .diamond = true, .curve = curve};
    }
    /// Ends outside the canvas are moved to just beyond its edge.
    void line(double x0, double y0, double x1, double y1, size_t curve) {
        for (double* x : {&x0, &x1}) *x = std::clamp(*x, -1.0, static_cast<double>(dots_wide()));
        for (double* y : {&y0, &y1}) *y = std::clamp(*y, -1.0, static_cast<double>(dots_high()));
        auto const steps = static_cast<int64_t>(std::ceil(std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1.0})));
        for (int64_t i = 0; i <= steps; ++i) {
            double const t = static_cast<double>(i) / static_cast<double>(steps);
            dot(std::lround(x0 + t * (x1 - x0)), std::lround(y0 + t * (y1 - y0)), curve);
        }
    }

    std::string row(int64_t y, bool color) const {
        std::string text;
        for (int64_t x = 0; x < columns_; ++x) {
            Cell const& cell = cells_[static_cast<size_t>(y * columns_ + x)];
            if (!cell.diamond && cell.dots == 0) {
                text += ' ';
                continue;
            }
            std::string const mark = cell.diamond ? std::string(kDiamond) : braille(cell.dots);
            text += color ? fmt::format("\x1b[{}m{}\x1b[0m", kColorCodes[cell.curve % kColorCodes.size()], mark) : mark;
        }
        return text;
    }

  private:
    Cell& at(int64_t x, int64_t y) { return cells_[static_cast<size_t>(y * columns_ + x)]; }
    int64_t columns_, rows_;
    std::vector<Cell> cells_;
};

void draw_curves(Chart const& chart, Canvas& canvas) {
    auto const x = [&](Point p) { return chart.x.position(p.x) * static_cast<double>(canvas.dots_wide() - 1); };
    auto const y = [&](Point p) { return (1 - chart.y.position(p.y)) * static_cast<double>(canvas.dots_high() - 1); };
    for (size_t c = 0; c < chart.curves.size(); ++c) {
        auto const& line = chart.curves[c].smooth;
        for (size_t i = 0; i < line.size(); ++i) {
            Point const from = line[i > 0 ? i - 1 : 0];
            canvas.line(x(from), y(from), x(line[i]), y(line[i]), c);
        }
    }
    for (size_t c = 0; c < chart.curves.size(); ++c)
        for (Point const p : chart.curves[c].eval) canvas.diamond(std::lround(x(p)), std::lround(y(p)), c);
}

std::string legend(Chart const& chart, bool color) {
    std::string text;
    std::string const key = printable_name(chart.key);
    for (size_t c = 0; c < chart.curves.size(); ++c) {
        Curve const& curve = chart.curves[c];
        auto const paint = [&](std::string_view mark) {
            return color ? fmt::format("\x1b[{}m{}\x1b[0m", kColorCodes[c % kColorCodes.size()], mark)
                         : std::string(mark);
        };
        text += fmt::format("{}{}", c > 0 ? "   " : "", printable_name(curve.name));
        if (!curve.raw.empty()) text += fmt::format("  {} {} {:.4g}", paint(kLine), key, curve.raw.back().y);
        if (!curve.eval.empty()) text += fmt::format("  {} eval_{} {:.4g}", paint(kDiamond), key, curve.eval.back().y);
    }
    return text;
}

// The x axis and its labels, each centred under its tick and left out where it would touch the one before.
std::string bottom_axis(Chart const& chart, int64_t margin, int64_t width) {
    std::vector<bool> ticked(static_cast<size_t>(width));
    std::string labels = "step";
    for (Tick const& tick : ticks(chart.x, std::max<int64_t>(width / 12, 2), 1)) {
        auto const at = std::lround(chart.x.position(tick.value) * static_cast<double>(width - 1));
        auto const size = static_cast<int64_t>(tick.label.size());
        int64_t const start = margin + 1 + std::min(at - size / 2, width - size);
        if (start <= static_cast<int64_t>(labels.size())) continue;
        ticked[static_cast<size_t>(at)] = true;
        labels.resize(static_cast<size_t>(start), ' ');
        labels += tick.label;
    }
    std::string axis = std::string(static_cast<size_t>(margin), ' ') + std::string(kCorner);
    for (bool const tick : ticked) axis += tick ? kBottomTick : kHorizontal;
    return axis + "\n" + labels + "\n";
}

}  // namespace

std::string draw_terminal(Chart const& chart, int64_t columns, int64_t rows, bool color) {
    rows = std::max(rows, kFewestRows) - 3;  // legend, axis, labels
    auto const marks = ticks(chart.y, std::max<int64_t>(rows / 3, 2));
    size_t label_width = 0;
    for (Tick const& tick : marks) label_width = std::max(label_width, tick.label.size());
    int64_t const width = std::max(columns, kFewestColumns) - static_cast<int64_t>(label_width) - 2;

    Canvas canvas(width, rows);
    draw_curves(chart, canvas);
    std::vector<std::string> labels(static_cast<size_t>(rows));
    for (Tick const& tick : marks) {
        auto const row = std::lround((1 - chart.y.position(tick.value)) * static_cast<double>(rows - 1));
        labels[static_cast<size_t>(row)] = tick.label;
    }
    std::string text = legend(chart, color) + "\n";
    for (int64_t row = 0; row < rows; ++row) {
        std::string const& label = labels[static_cast<size_t>(row)];
        text += fmt::format("{:>{}} {}{}\n", label, label_width, label.empty() ? kVertical : kLeftTick,
                            canvas.row(row, color));
    }
    return text + bottom_axis(chart, static_cast<int64_t>(label_width) + 1, width);
}

}  // namespace perigee::plot
