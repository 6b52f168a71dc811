#include "train/log_table.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>

#include "base/log.h"
#include "train/progress.h"

namespace perigee {
namespace {

LogRow row(int64_t step) {
    return {.step = step,
            .loss = 3.21046,
            .grad_norm = 0.8123,
            .lr = 3e-4,
            .tokens_per_s = 123456.4,
            .mfu = 0.4119,
            .memory_bytes = int64_t{61} << 30,
            .memory_peak_bytes = (int64_t{72} << 30) + (100 << 20),
            .seconds_left = 3723};
}

std::string without_styles(std::string const& text) {
    return std::regex_replace(text, std::regex("\x1b\\[[0-9;]*m"), "");
}

TEST(LogTable, IsAtMost79ColumnsWideWhateverTheValues) {
    double const inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    int64_t const most = std::numeric_limits<int64_t>::max();
    for (int64_t const step : {int64_t{0}, int64_t{9'999'999}, int64_t{999'999'999}, int64_t{1'000'000'000'000}})
        for (double const value : {0.0, 1e-300, 12.3456, 999.99996, 1e6, 1.23e300, inf, nan})
            for (int64_t const bytes : {int64_t{0}, int64_t{1023}, int64_t{72} << 30, most})
                for (bool const skipped : {false, true}) {
                    LogRow const wild{step, value, value, value, value, value, bytes, bytes, value, skipped};
                    for (auto const& line : LogTable().lines(wild)) EXPECT_LE(line.plain.size(), 79U) << line.plain;
                }
}

TEST(LogTable, SaysEveryValueInItsUnit) {
    auto const lines = LogTable().lines(row(12000));
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_EQ(lines[0].plain, "   step     loss  grad norm       lr  tokens/s    MFU   memory/peak      left");
    EXPECT_EQ(lines[1].plain, "  12000   3.2105      0.812  3.0e-04   123,456  41.2%  61.0/72.1GiB  01:02:03");
}

TEST(LogTable, HasNoColumnForAnMfuThatIsNotKnown) {
    LogRow unknown = row(1);
    unknown.mfu.reset();
    for (auto const& line : LogTable().lines(unknown)) {
        EXPECT_EQ(line.plain.find("MFU"), std::string::npos);
        EXPECT_EQ(line.plain.find('%'), std::string::npos);
        EXPECT_EQ(line.plain.find("n/a"), std::string::npos);
    }
}

TEST(LogTable, RepeatsItsHeaderEveryTwentyRows) {
    LogTable table;
    for (int64_t step = 1; step <= 60; ++step)
        EXPECT_EQ(table.lines(row(step)).size(), step % 20 == 1 ? 2U : 1U) << step;
}

TEST(LogTable, SaysSkippedInPlaceOfTheTimeLeft) {
    LogRow skipped = row(7);
    skipped.skipped = true;
    EXPECT_TRUE(LogTable().lines(skipped).back().plain.ends_with("   skipped"));
}

TEST(LogTable, LooksTheSameWithAndWithoutColours) {
    for (auto const& line : LogTable().lines(row(12000))) {
        EXPECT_NE(line.styled, line.plain);
        EXPECT_EQ(without_styles(line.styled), line.plain);
    }
}

// What a short run writes to standard error.
void play() {
    LogTable table;
    Progress progress(true);
    log::around_lines([&] { progress.clear(); }, [&] { progress.redraw(); });
    log::info("39,072 parameters, dp 1 cp 1 tp 1 on cpu");
    for (int64_t step = 100; step <= 300; step += 100) {
        LogRow now = row(step);
        now.skipped = step == 200;
        now.seconds_left = static_cast<double>(300 - step);
        for (auto const& line : table.lines(now)) log::write_styled(line.plain, line.styled);
        progress.update(step, 300, now.seconds_left, fmt::format("step {}/300 loss {:.4f}", step, now.loss));
        if (step == 200) log::warn("checkpoint at step 200 failed, training goes on: no space");
    }
    progress.clear();
    log::info("finished at step 300");
    log::around_lines({}, {});
}

/// Everything that play() writes to such a descriptor as standard error.
std::string played(int reader, int writer) {
    int const before = dup(STDERR_FILENO);
    dup2(writer, STDERR_FILENO);
    play();
    dup2(before, STDERR_FILENO);
    close(before);
    close(writer);
    std::string text;
    std::array<char, 4096> piece;
    for (ssize_t n = 0; (n = read(reader, piece.data(), piece.size())) > 0;) text.append(piece.data(), n);
    close(reader);
    return text;
}

std::string on_terminal() {
    int reader = -1, screen = -1;
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    if (openpty(&reader, &screen, nullptr, nullptr, &size) != 0) ADD_FAILURE() << "no pseudo-terminal";
    return played(reader, screen);
}

/// Compares with the file, or writes it where PERIGEE_GOLDEN is set.
void expect_golden(std::string const& text, std::string const& name) {
    auto const path = std::filesystem::path(__FILE__).parent_path() / "golden" / name;
    if (std::getenv("PERIGEE_GOLDEN") != nullptr) std::ofstream(path) << text;
    std::ostringstream golden;
    golden << std::ifstream(path).rdbuf();
    EXPECT_EQ(text, golden.str()) << path;
}

TEST(LogGolden, OnATerminalOf80Columns) {
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    expect_golden(on_terminal(), "log_terminal.txt");
}

TEST(LogGolden, InAPipe) {
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    std::string const text = played(ends[0], ends[1]);
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    expect_golden(text, "log_piped.txt");
}

TEST(LogGolden, NoColorLeavesTheBarAndTakesTheColours) {
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    std::string const coloured = on_terminal();
    setenv("NO_COLOR", "1", 1);
    std::string const plain = on_terminal();
    unsetenv("NO_COLOR");
    EXPECT_NE(plain, coloured);
    EXPECT_EQ(plain, without_styles(coloured));
}

}  // namespace
}  // namespace perigee
