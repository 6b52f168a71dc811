#include "train/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>

#include <cstdlib>
#include <limits>

namespace perigee {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A terminal of a given width, and everything that was written to it.
class Terminal {
  public:
    explicit Terminal(unsigned short width) {
        setenv("TERM", "xterm", 1);
        winsize size{.ws_row = 24, .ws_col = width, .ws_xpixel = 0, .ws_ypixel = 0};
        if (openpty(&reader_, &screen_, nullptr, nullptr, &size) != 0) ADD_FAILURE() << "no pseudo-terminal";
        fcntl(reader_, F_SETFL, O_NONBLOCK);
    }
    ~Terminal() {
        close(screen_);
        close(reader_);
    }
    Terminal(Terminal const&) = delete;
    Terminal& operator=(Terminal const&) = delete;

    int screen() const { return screen_; }
    std::string take() const {
        std::string bytes(4096, '\0');
        auto const n = read(reader_, bytes.data(), bytes.size());
        bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
        return bytes;
    }

  private:
    int reader_ = -1;
    int screen_ = -1;
};

TEST(Format, DurationsReadAsHoursMinutesSeconds) {
    EXPECT_EQ(format_duration(0), "00:00:00");
    EXPECT_EQ(format_duration(751.4), "00:12:31");
    EXPECT_EQ(format_duration(59.6), "00:01:00");
    EXPECT_EQ(format_duration(100 * 3600.0 + 61), "100:01:01");
}

TEST(Format, UnknownDurationsAreDashes) {
    EXPECT_EQ(format_duration(-1), "--:--:--");
    EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "--:--:--");
    EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "--:--:--");
    EXPECT_EQ(format_duration(1e300), "--:--:--");
}

TEST(Format, CountsAreGroupedByThousands) {
    EXPECT_EQ(format_count(0), "0");
    EXPECT_EQ(format_count(999), "999");
    EXPECT_EQ(format_count(1000), "1,000");
    EXPECT_EQ(format_count(12345), "12,345");
    EXPECT_EQ(format_count(-123456), "-123,456");
    EXPECT_EQ(format_count(std::numeric_limits<int64_t>::max()), "9,223,372,036,854,775,807");
}

TEST(Format, BytesKeepThreeDigitsInTheLargestUnit) {
    EXPECT_EQ(format_bytes(0), "0B");
    EXPECT_EQ(format_bytes(512), "512B");
    EXPECT_EQ(format_bytes(1000), "0.98KiB");
    EXPECT_EQ(format_bytes(1320702444), "1.23GiB");
    EXPECT_EQ(format_bytes(int64_t{80} << 30), "80.0GiB");
    EXPECT_EQ(format_bytes(int64_t{640} << 20), "640MiB");
}

TEST(RenderProgress, FillsTheBarInProportion) {
    EXPECT_EQ(render_progress(0, 10, 20, "", 80), "[..............................]   0% eta 00:00:20");
    EXPECT_EQ(render_progress(5, 10, 72, "", 80), "[###############...............]  50% eta 00:01:12");
    EXPECT_EQ(render_progress(10, 10, 0, "", 80), "[##############################] 100% eta 00:00:00");
}

TEST(RenderProgress, SaysHundredPercentOnlyWhenDone) {
    EXPECT_THAT(render_progress(999, 1000, 1, "", 80), HasSubstr(" 99% "));
}

TEST(RenderProgress, NeverExceedsTheWidth) {
    for (int64_t width = 0; width < 100; ++width)
        EXPECT_LE(render_progress(3, 9, 5, "loss 3.21", width).size(), static_cast<size_t>(width));
    EXPECT_THAT(render_progress(3, 9, 5, "loss 3.21", 80), EndsWith("eta 00:00:05 loss 3.21"));
    EXPECT_EQ(render_progress(3, 9, 5, "loss 3.21", 20), "  33% eta 00:00:05 l");
}

TEST(Progress, DrawsInPlaceOnATerminal) {
    Terminal const terminal(60);
    Progress progress(true, terminal.screen());
    ASSERT_TRUE(progress.active());
    progress.update(5, 10, 72, "loss 3.21");
    std::string const drawn = terminal.take();
    EXPECT_THAT(drawn, StartsWith("\r\x1b[K["));
    EXPECT_THAT(drawn, EndsWith("50% eta 00:01:12 loss 3.2"));  // 59 of 60 columns
    EXPECT_THAT(drawn, ::testing::Not(HasSubstr("\n")));
}

TEST(Progress, MakesRoomForALogLineAndComesBack) {
    Terminal const terminal(60);
    Progress progress(true, terminal.screen());
    progress.update(5, 10, 72);
    std::string const drawn = terminal.take();
    progress.clear();
    EXPECT_EQ(terminal.take(), "\r\x1b[K");
    progress.clear();
    EXPECT_EQ(terminal.take(), "") << "nothing to clear any more";
    progress.redraw();
    EXPECT_EQ(terminal.take(), drawn);
}

TEST(Progress, LeavesACleanLineBehind) {
    Terminal const terminal(60);
    {
        Progress progress(true, terminal.screen());
        progress.redraw();
        EXPECT_EQ(terminal.take(), "") << "nothing to show before the first update";
        progress.update(1, 2, 3);
        EXPECT_NE(terminal.take(), "");
    }
    EXPECT_EQ(terminal.take(), "\r\x1b[K");
}

TEST(Progress, IsSilentWhenUnwantedOrNotOnATerminal) {
    Terminal const terminal(60);
    Progress unwanted(false, terminal.screen());
    unwanted.update(1, 2, 3);
    EXPECT_EQ(terminal.take(), "");

    int ends[2];
    ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
    {
        Progress piped(true, ends[1]);
        EXPECT_FALSE(piped.active());
        piped.update(1, 2, 3);
        piped.clear();
    }
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), -1) << "a pipe must stay empty";
    close(ends[0]);
    close(ends[1]);
}

TEST(Progress, IsSilentOnATerminalThatCannotMoveItsCursor) {
    Terminal const terminal(60);
    setenv("TERM", "dumb", 1);
    Progress progress(true, terminal.screen());
    EXPECT_FALSE(progress.active());
}

}  // namespace
}  // namespace perigee
