// What a person watching a run sees: one progress bar on a terminal, redrawn in place below the log lines, and the
// formats of durations, counts and sizes that log lines share. Anywhere but on a terminal the bar stays silent.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace perigee {

/// "00:12:31"; hours go on past 99. "--:--:--" for a negative or non-finite number of seconds.
std::string format_duration(double seconds);
/// "12,345"; "-12,345" below zero.
std::string format_count(int64_t count);
/// Three significant digits in the largest fitting binary unit: "512B", "1.23GiB".
std::string format_bytes(int64_t bytes);

/// One bar of at most `width` columns, without a line end: `[#####.....]  45% eta 00:01:12 text`. What does not fit is
/// left out from the right, so a narrow terminal never wraps.
std::string render_progress(int64_t step, int64_t steps, double eta_seconds, std::string_view text, int64_t width);

/// The bar itself. For one thread, the one that writes the log lines:
///     progress.clear(); log::info(...); progress.update(step, steps, eta);
/// Leaves a clean line behind when it goes out of scope.
class Progress {
  public:
    /// Draws on `descriptor` when `wanted` and it is a terminal that can move its cursor; otherwise does nothing.
    explicit Progress(bool wanted, int descriptor = STDERR_FILENO);
    ~Progress() { clear(); }
    Progress(Progress const&) = delete;
    Progress& operator=(Progress const&) = delete;

    bool active() const { return active_; }
    /// Draws the bar after `step` of `steps`; `text` follows the time left.
    void update(int64_t step, int64_t steps, double eta_seconds, std::string_view text = {});
    /// Removes the bar, so that a line can be written in its place; redraw() brings it back as it was.
    void clear();
    void redraw();

  private:
    struct State {
        int64_t step = 0;
        int64_t steps = 0;
        double eta_seconds = 0;
        std::string text;
    };
    void write_out(std::string_view bytes) const;

    int descriptor_;
    bool active_;
    bool shown_ = false;
    State state_;
};

}  // namespace perigee
