#include "train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace perigee {

namespace {

constexpr int64_t kBarColumns = 30;
constexpr int64_t kFewestBarColumns = 5;
constexpr int64_t kUsualWidth = 80;
constexpr std::string_view kClearLine = "\r\x1b[K";

bool can_redraw(int descriptor) {
    if (!isatty(descriptor)) return false;
    char const* const terminal = std::getenv("TERM");
    return terminal == nullptr || std::string_view(terminal) != "dumb";
}

// Asked at every draw: a window may be resized while training.
int64_t columns(int descriptor) {
    winsize size{};
    if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualWidth;
    return size.ws_col;
}

}  // namespace

std::string format_duration(double seconds) {
    constexpr double kLongest = 1e12;  // beyond this the number says nothing and would not fit an integer
    if (!(seconds >= 0 && seconds < kLongest)) return "--:--:--";
    auto const s = static_cast<int64_t>(std::llround(seconds));
    return fmt::format("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string format_count(int64_t count) {
    std::string text = std::to_string(count);
    size_t const digits_from = count < 0 ? 1 : 0;
    for (size_t i = text.size(); i > digits_from + 3;) text.insert(i -= 3, 1, ',');
    return text;
}

std::string format_bytes(int64_t bytes) {
    constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    auto value = static_cast<double>(bytes);
    size_t unit = 0;
    // 999.5 would print as four digits; 1000 to 1023 of a unit read better as 0.98 of the next.
    while (std::abs(value) >= 999.5 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
    if (unit == 0) return fmt::format("{}B", bytes);
    int const decimals = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
    return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

std::string render_progress(int64_t step, int64_t steps, double eta_seconds, std::string_view text, int64_t width) {
    double const done = steps > 0 ? std::clamp(static_cast<double>(step) / static_cast<double>(steps), 0.0, 1.0) : 0;
    // Rounded down: 100% means done.
    auto const percent = static_cast<int64_t>(done * 100);
    std::string tail = fmt::format(" {:3}% eta {}", percent, format_duration(eta_seconds));
    int64_t const room = width - 2 - static_cast<int64_t>(tail.size());
    std::string line;
    if (room >= kFewestBarColumns) {
        int64_t const bar = std::min(room, kBarColumns);
        auto const filled = static_cast<size_t>(done * static_cast<double>(bar));
        line = fmt::format("[{:#<{}}{:.<{}}]", "", filled, "", static_cast<size_t>(bar) - filled);
    }
    line += tail;
    if (!text.empty()) line.append(" ").append(text);
    return line.substr(0, static_cast<size_t>(std::max<int64_t>(width, 0)));
}

Progress::Progress(bool wanted, int descriptor) : descriptor_(descriptor), active_(wanted && can_redraw(descriptor)) {}

void Progress::update(int64_t step, int64_t steps, double eta_seconds, std::string_view text) {
    if (!active_) return;
    state_ = {step, steps, eta_seconds, std::string(text)};
    redraw();
}

void Progress::clear() {
    if (shown_) write_out(kClearLine);
    shown_ = false;
}

void Progress::redraw() {
    if (!active_ || state_.steps <= 0) return;
    // One column stays free: a cursor past the last one wraps on some terminals.
    write_out(std::string(kClearLine) +
              render_progress(state_.step, state_.steps, state_.eta_seconds, state_.text, columns(descriptor_) - 1));
    shown_ = true;
}

// One write per draw, so that the bar never shows half drawn. A bar that cannot be written is not worth an error.
void Progress::write_out(std::string_view bytes) const {
    [[maybe_unused]] auto const written = ::write(descriptor_, bytes.data(), bytes.size());
}

}  // namespace perigee
