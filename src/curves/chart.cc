#include "curves/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace perigee::plot {

namespace {

constexpr size_t kStretches = 600;    // about the columns of a drawing: finer detail would not be seen
constexpr size_t kShortRun = 20;      // points that need no trend line
constexpr double kSmoothing = 0.012;  // standard deviation of the trend's window, as a share of the run
constexpr double kWildest = 0.01;     // share of raw values that may leave the window at the top

/// Calls visit(begin, end) for at most so many stretches of equal numbers of points.
template <class Visit>
void each_stretch(size_t points, size_t most, Visit visit) {
    size_t const stretches = std::min(points, most);
    for (size_t i = 0; i < stretches; ++i) visit(points * i / stretches, points * (i + 1) / stretches);
}

void include(Interval& interval, double value) {
    interval.low = std::min(interval.low, value);
    interval.high = std::max(interval.high, value);
}

/// Values that differ by less count as one: ticks between them could not be told apart, or not be computed.
double least_size(Interval interval) {
    return std::max(1e-9 * std::max(std::abs(interval.low), std::abs(interval.high)), 1e-200);
}

Interval with_margin(Interval interval, double share) {
    double const size = interval.high - interval.low;
    // A single value still needs a window around it.
    double const margin = size > least_size(interval) ? share * size : std::max(0.05 * std::abs(interval.high), 1e-3);
    return {interval.low - margin, interval.high + margin};
}

/// Decimals that tell multiples of `step` apart.
std::string number(double value, double step) {
    double const size = std::abs(value);
    if (size >= 1e7 || step < 1e-4) return fmt::format("{:.3g}", value);
    int const decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
    return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

std::vector<Point> drawable(std::vector<Point> const& points) {
    std::vector<Point> kept;
    std::copy_if(points.begin(), points.end(), std::back_inserter(kept), is_drawable);
    return kept;
}

std::vector<Point> extremes(std::vector<Point> const& points, size_t stretches) {
    if (points.size() <= 2 * stretches) return points;
    std::vector<Point> kept = {points.front()};
    each_stretch(points.size(), stretches, [&](size_t begin, size_t end) {
        auto first = points.begin() + static_cast<int64_t>(begin);
        auto last = points.begin() + static_cast<int64_t>(end);
        auto [low, high] = std::minmax_element(first, last, [](Point a, Point b) { return a.y < b.y; });
        if (low > high) std::swap(low, high);
        if (low->x != kept.back().x) kept.push_back(*low);
        if (high != low) kept.push_back(*high);
    });
    if (kept.back().x != points.back().x) kept.push_back(points.back());
    return kept;
}

// A Gaussian window over stretch means. Near the start it stays centred by narrowing, so that the first steep steps of
// a loss are not flattened; near the end it looks back, so that the last noise does not bend the line.
std::vector<Point> trend(std::vector<Point> const& points) {
    if (points.size() <= kShortRun) return points;
    std::vector<Point> means;
    each_stretch(points.size(), kStretches, [&](size_t begin, size_t end) {
        Point sum;
        for (size_t i = begin; i < end; ++i) sum = {sum.x + points[i].x, sum.y + points[i].y};
        auto const n = static_cast<double>(end - begin);
        means.push_back({sum.x / n, sum.y / n});
    });
    auto const count = static_cast<int64_t>(means.size());
    double const sigma = std::max(1.5, kSmoothing * static_cast<double>(count));
    std::vector<Point> smooth;
    for (int64_t i = 0; i < count; ++i) {
        int64_t const back = std::min(static_cast<int64_t>(3 * sigma), i);
        int64_t const ahead = std::min(back, count - 1 - i);
        double weights = 0, sum = 0;
        for (int64_t d = -back; d <= ahead; ++d) {
            double const w = std::exp(-0.5 * static_cast<double>(d * d) / (sigma * sigma));
            weights += w;
            sum += w * means[static_cast<size_t>(i + d)].y;
        }
        smooth.push_back({means[static_cast<size_t>(i)].x, sum / weights});
    }
    return smooth;
}

Chart make_chart(std::string const& key, std::vector<RunLog> const& runs) {
    Interval const nothing{HUGE_VAL, -HUGE_VAL};
    Chart chart{.key = key, .curves = {}, .x = nothing, .y = nothing};
    for (RunLog const& run : runs) {
        auto const logged = drawable(run.train);
        Curve curve{
            .name = run.name, .raw = extremes(logged, kStretches), .smooth = trend(logged), .eval = drawable(run.eval)};
        for (auto const* points : {&curve.smooth, &curve.eval})
            for (Point const p : *points) include(chart.x, p.x), include(chart.y, p.y);
        std::vector<double> values;
        for (Point const p : curve.raw) include(chart.x, p.x), values.push_back(p.y);
        if (!values.empty()) {
            std::sort(values.begin(), values.end());
            include(chart.y, values.front());
            auto const wild = static_cast<size_t>(kWildest * static_cast<double>(values.size()));
            include(chart.y, values[values.size() - 1 - wild]);
        }
        chart.curves.push_back(std::move(curve));
    }
    if (chart.x.low > 0 && chart.x.low < 0.05 * chart.x.high) chart.x.low = 0;
    if (!(chart.x.high - chart.x.low > least_size(chart.x))) chart.x = with_margin(chart.x, 0);
    chart.y = with_margin(chart.y, 0.04);
    return chart;
}

std::vector<Tick> ticks(Interval interval, int64_t count, double finest) {
    PERIGEE_CHECK(interval.high - interval.low >= 0.5 * least_size(interval), "ticks from {} to {}", interval.low,
                  interval.high);
    double const rough = (interval.high - interval.low) / static_cast<double>(std::max<int64_t>(count, 1));
    double const power = std::pow(10, std::floor(std::log10(rough)));
    double const lead = rough / power;
    double const step = std::max(finest, power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10));
    std::vector<Tick> result;
    double const slack = 1e-9;
    auto const last = static_cast<int64_t>(std::floor(interval.high / step + slack));
    for (auto i = static_cast<int64_t>(std::ceil(interval.low / step - slack)); i <= last; ++i) {
        double const value = static_cast<double>(i) * step;
        result.push_back({value, number(value, step)});
    }
    return result;
}

}  // namespace perigee::plot
