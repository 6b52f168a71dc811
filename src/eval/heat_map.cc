// The needle grid as a self-contained SVG document: no script, no external font or style.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "eval/pass_rates.h"
#include "eval/results.h"

namespace perigee {

namespace {

constexpr double kCellWidth = 52, kCellHeight = 22, kLeft = 64, kGap = 28, kTop = 74, kBottom = 40;

/// From red over yellow to green; light enough for dark text.
std::string color(double share) {
    if (std::isnan(share)) return "#e5e7eb";
    constexpr std::array<double, 3> kRed = {248, 113, 113}, kYellow = {253, 224, 110}, kGreen = {94, 200, 120};
    bool const upper = share > 0.5;
    auto const& from = upper ? kYellow : kRed;
    auto const& to = upper ? kGreen : kYellow;
    double const at = upper ? 2 * share - 1 : 2 * share;
    auto const mix = [&](size_t i) { return static_cast<int>(std::lround(from[i] + at * (to[i] - from[i]))); };
    return fmt::format("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2));
}

std::string short_length(int64_t length) {
    return length % 1024 == 0 ? fmt::format("{}K", length / 1024) : fmt::format("{}", length);
}

class HeatMap {
  public:
    HeatMap(PassRates const& rates, std::string const& title) : rates_(rates), title_(title) {}

    std::string document() {
        auto const columns = static_cast<double>(rates_.lengths().size());
        auto const panels = static_cast<double>(rates_.tasks().size());
        double const panel = columns * kCellWidth;
        double const width = kLeft + std::max(panels * (panel + kGap), 7.5 * static_cast<double>(title_.size()));
        double const height = kTop + static_cast<double>(rates_.depths().size()) * kCellHeight + kBottom;
        add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" )"
            R"(font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" fill="#1f2937" )"
            R"(text-anchor="middle">)",
            width, height);
        add(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
        add(R"(<text x="12" y="26" font-size="15" text-anchor="start">{}</text>)", title_);
        for (size_t d = 0; d < rates_.depths().size(); ++d)
            add(R"(<text x="{:.0f}" y="{:.0f}" text-anchor="end">{:.0f}%</text>)", kLeft - 6,
                row(d) + kCellHeight * 0.7, 100 * rates_.depths()[d]);
        double left = kLeft;
        for (std::string const& task : rates_.tasks()) {
            draw_panel(task, left, panel);
            left += panel + kGap;
        }
        return text_ + "</svg>\n";
    }

  private:
    template <class... Args>
    void add(fmt::format_string<Args...> format, Args&&... args) {
        text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
    }
    static double row(size_t depth) { return kTop + static_cast<double>(depth) * kCellHeight; }

    void draw_panel(std::string const& task, double left, double width) {
        add(R"(<text x="{:.0f}" y="{:.0f}">{}</text>)", left + width / 2, kTop - 26, task);
        for (size_t i = 0; i < rates_.lengths().size(); ++i) {
            int64_t const length = rates_.lengths()[i];
            double const x = left + static_cast<double>(i) * kCellWidth;
            add(R"(<text x="{:.0f}" y="{:.0f}">{}</text>)", x + kCellWidth / 2, kTop - 8, short_length(length));
            for (size_t d = 0; d < rates_.depths().size(); ++d) {
                double const share = rates_.share(task, length, rates_.depths()[d]);
                add(R"(<rect x="{:.0f}" y="{:.0f}" width="{:.0f}" height="{:.0f}" fill="{}"/>)", x + 1, row(d) + 1,
                    kCellWidth - 2, kCellHeight - 2, color(share));
                if (!std::isnan(share))
                    add(R"(<text x="{:.0f}" y="{:.0f}">{:.0f}</text>)", x + kCellWidth / 2, row(d) + kCellHeight * 0.7,
                        percent(share));
            }
        }
    }

    PassRates const& rates_;
    std::string const& title_;
    std::string text_;
};

}  // namespace

std::string needle_heat_map(std::span<Measurement const> measurements, std::string const& title) {
    PassRates const rates(measurements);
    return HeatMap(rates, title).document();
}

}  // namespace perigee
