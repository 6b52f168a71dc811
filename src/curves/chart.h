// The chart behind both drawings: which lines and points to show, in which window, with which ticks. The terminal and
// the SVG only differ in how they put it on the screen.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "curves/run_log.h"

namespace perigee::plot {

struct Interval {
    double low = 0;
    double high = 1;
    double position(double value) const { return (value - low) / (high - low); }  ///< 0 at low, 1 at high
};

/// One run, thinned to at most a few thousand points.
struct Curve {
    std::string name;
    std::vector<Point> raw;     ///< as logged; where there are many, the extremes of each stretch
    std::vector<Point> smooth;  ///< the trend; equals raw for a short run
    std::vector<Point> eval;
};

struct Tick {
    double value = 0;
    std::string label;
};

struct Chart {
    std::string key;
    std::vector<Curve> curves;
    Interval x;
    Interval y;
};

/// Finite ones alone.
std::vector<Point> drawable(std::vector<Point> const& points);
/// The lowest and the highest of each of so many stretches of equal numbers of points, in their order, with the first
/// and the last point; all of them where that is no more.
std::vector<Point> extremes(std::vector<Point> const& points, size_t stretches);
/// A smooth line through the points; they themselves where they are few.
std::vector<Point> trend(std::vector<Point> const& points);

/// The y window holds every trend and evaluation, and all raw values but the wildest.
Chart make_chart(std::string const& key, std::vector<RunLog> const& runs);

/// Round numbers (1, 2 or 5 times a power of ten apart) within the interval, about `count` of them, at least
/// `finest` apart.
std::vector<Tick> ticks(Interval interval, int64_t count, double finest = 0);

/// For as many columns and rows of characters; `color` adds ANSI colours.
std::string draw_terminal(Chart const& chart, int64_t columns, int64_t rows, bool color);
/// A self-contained SVG document.
std::string draw_svg(Chart const& chart);

}  // namespace perigee::plot
