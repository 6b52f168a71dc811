// The chart as a self-contained SVG document: no script, no external font or style.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "curves/chart.h"
#include "curves/markup.h"

namespace perigee::plot {

namespace {

constexpr double kWidth = 960, kHeight = 540;
constexpr double kLeft = 84, kRight = 28, kTop = 64, kBottom = 62;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr std::array<std::string_view, 8> kCurveColors = {"#2563eb", "#ea580c", "#9333ea", "#16a34a",
                                                          "#0891b2", "#dc2626", "#a16207", "#64748b"};
constexpr size_t kNamesInTitle = 3;  // more are left to the legend

class Drawing {
  public:
    explicit Drawing(Chart const& chart) : chart_(chart) {}

    std::string document() {
        add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
            R"(font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="13" fill="#374151">)",
            kWidth, kHeight);
        add(R"(<rect width="{}" height="{}" fill="#ffffff"/>)", kWidth, kHeight);
        add(R"(<clipPath id="window"><rect x="{}" y="{}" width="{}" height="{}"/></clipPath>)", kLeft, kTop, kPlotWidth,
            kPlotHeight);
        title();
        axes();
        for (size_t i = 0; i < chart_.curves.size(); ++i)
            curve(chart_.curves[i], kCurveColors[i % kCurveColors.size()]);
        legend();
        add("</svg>");
        return std::move(text_);
    }

  private:
    template <class... Args>
    void add(fmt::format_string<Args...> format, Args&&... args) {
        fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
        text_ += '\n';
    }

    double x(double value) const { return kLeft + chart_.x.position(value) * kPlotWidth; }
    double y(double value) const { return kTop + (1 - chart_.y.position(value)) * kPlotHeight; }

    std::string points(std::vector<Point> const& line) const {
        std::string text;
        for (Point const p : line) text += fmt::format("{:.1f},{:.1f} ", x(p.x), y(p.y));
        return text;
    }

    void title() {
        std::string names;
        if (chart_.curves.size() <= kNamesInTitle)
            for (Curve const& curve : chart_.curves)
                names += curve.name + (&curve == &chart_.curves.back() ? ": " : ", ");
        add(R"(<text x="{}" y="36" font-size="19" font-weight="600" fill="#111827">{}{}</text>)", kLeft, escaped(names),
            escaped(chart_.key));
    }

    void axes() {
        double const bottom = kTop + kPlotHeight;
        for (Tick const& tick : ticks(chart_.y, 6)) {
            add(R"(<path d="M{:.1f} {:.1f}h{}" stroke="#e5e7eb"/>)", kLeft, y(tick.value), kPlotWidth);
            add(R"(<text x="{}" y="{:.1f}" text-anchor="end">{}</text>)", kLeft - 10, y(tick.value) + 4.5, tick.label);
        }
        for (Tick const& tick : ticks(chart_.x, 8, 1)) {
            add(R"(<path d="M{:.1f} {:.1f}v6" stroke="#9ca3af"/>)", x(tick.value), bottom);
            add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)", x(tick.value), bottom + 22,
                tick.label);
        }
        add(R"(<path d="M{:.1f} {:.1f}h{}" stroke="#9ca3af"/>)", kLeft, bottom, kPlotWidth);
        add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle" fill="#6b7280">step</text>)", kLeft + kPlotWidth / 2,
            bottom + 46);
        double const middle = kTop + kPlotHeight / 2;
        add(R"svg(<text x="24" y="{0:.1f}" text-anchor="middle" fill="#6b7280" transform="rotate(-90 24 {0:.1f})">)svg"
            "{1}</text>",
            middle, escaped(chart_.key));
    }

    void curve(Curve const& curve, std::string_view color) {
        add(R"svg(<g clip-path="url(#window)" fill="none" stroke="{}" stroke-linejoin="round">)svg", color);
        if (curve.raw.size() > 1) {
            add(R"(<polyline stroke-opacity="0.25" points="{}"/>)", points(curve.raw));
            add(R"(<polyline stroke-width="2.25" points="{}"/>)", points(curve.smooth));
        }
        if (!curve.eval.empty())
            add(R"(<polyline stroke-dasharray="2 6" stroke-width="1.5" points="{}"/>)", points(curve.eval));
        add("</g>");
        if (curve.raw.size() == 1) dot(curve.raw.front(), 4, color);
        for (Point const p : curve.eval) dot(p, 5, color);
    }

    void dot(Point p, double radius, std::string_view color) {
        add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}" stroke="#ffffff" stroke-width="1.5"/>)", x(p.x), y(p.y),
            radius, color);
    }

    /// Points of trends and evaluations that something in this place would cover.
    int64_t points_inside(double left, double top, double width, double height) const {
        int64_t inside = 0;
        for (Curve const& curve : chart_.curves)
            for (auto const* points : {&curve.smooth, &curve.eval})
                inside += std::ranges::count_if(*points, [&](Point p) {
                    return left <= x(p.x) && x(p.x) <= left + width && top <= y(p.y) && y(p.y) <= top + height;
                });
        return inside;
    }

    // In the upper right corner, where a falling curve leaves room, or in the lower right one where that is emptier.
    void legend() {
        struct Row {
            std::string_view color;
            bool eval;
            std::string label;
        };
        std::vector<Row> rows;
        size_t longest = 0;
        for (size_t i = 0; i < chart_.curves.size(); ++i) {
            Curve const& curve = chart_.curves[i];
            std::string const prefix = chart_.curves.size() > 1 ? curve.name + " " : "";
            auto const color = kCurveColors[i % kCurveColors.size()];
            if (!curve.raw.empty())
                rows.push_back({color, false, fmt::format("{}{} {:.4g}", prefix, chart_.key, curve.raw.back().y)});
            if (!curve.eval.empty())
                rows.push_back({color, true, fmt::format("{}eval_{} {:.4g}", prefix, chart_.key, curve.eval.back().y)});
        }
        for (Row const& row : rows) longest = std::max(longest, row.label.size());
        double const width = 62 + 7.6 * static_cast<double>(longest);
        double const height = 14 + 22 * static_cast<double>(rows.size());
        double const left = kLeft + kPlotWidth - width - 12;
        double top = kTop + 12;
        double const low = kTop + kPlotHeight - height - 12;
        if (points_inside(left, low, width, height) < points_inside(left, top, width, height)) top = low;
        add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="6" fill="#ffffff" fill-opacity="0.88" )"
            R"(stroke="#e5e7eb"/>)",
            left, top, width, height);
        for (Row const& row : rows) {
            top += 22;
            if (row.eval)
                add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="5" fill="{}"/>)", left + 26, top - 4, row.color);
            else
                add(R"(<path d="M{:.1f} {:.1f}h28" stroke="{}" stroke-width="2.25"/>)", left + 12, top - 4, row.color);
            add(R"(<text x="{:.1f}" y="{:.1f}">{}</text>)", left + 50, top + 0.5, escaped(row.label));
        }
    }

    Chart const& chart_;
    std::string text_;
};

}  // namespace

std::string draw_svg(Chart const& chart) { return Drawing(chart).document(); }

}  // namespace perigee::plot
