#include "base/log.h"

#include <fmt/chrono.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/printable.h"

namespace perigee::log {

namespace {

constexpr size_t kEarlyLines = 100;

struct State {
    State() : logger("perigee", std::make_shared<spdlog::sinks::stderr_sink_mt>()) { logger.set_pattern("%v"); }
    std::mutex mutex;
    spdlog::logger logger;
    std::function<void(std::string const&)> mirror;
    bool mirrored = false;           // a mirror was or is there
    std::vector<std::string> early;  // lines from before it
    std::function<void()> before;
    std::function<void()> after;
    int rank = 0;
};

// The one process-wide object: a log is process-wide by nature.
State& state() {
    static State instance;
    return instance;
}

}  // namespace

void set_rank(int rank) { state().rank = rank; }

void mirror(std::function<void(std::string const&)> sink) {
    std::scoped_lock const lock(state().mutex);
    State& s = state();
    s.mirror = std::move(sink);
    if (!s.mirror) return;
    for (std::string const& line : s.early) s.mirror(line);
    s.early.clear();
    s.mirrored = true;
}

void around_lines(std::function<void()> before, std::function<void()> after) {
    std::scoped_lock const lock(state().mutex);
    state().before = std::move(before);
    state().after = std::move(after);
}

bool has_colour() {
    char const* const refused = std::getenv("NO_COLOR");
    char const* const terminal = std::getenv("TERM");
    return (refused == nullptr || *refused == '\0') && ::isatty(STDERR_FILENO) == 1 &&
           (terminal == nullptr || std::string_view(terminal) != "dumb");
}

namespace {

/// `shown` goes to standard error, `kept` to the mirror.
void emit(State& s, std::string const& shown, std::string const& kept) {
    if (s.before) s.before();
    s.logger.info(shown);
    s.logger.flush();
    if (s.after) s.after();
    std::string line_of_file = fmt::format("{:%Y-%m-%d %H:%M:%S}  {}", fmt::localtime(std::time(nullptr)), kept);
    if (s.mirror)
        s.mirror(line_of_file);
    else if (!s.mirrored && s.early.size() < kEarlyLines)
        s.early.push_back(std::move(line_of_file));
}

std::string_view prefix(Level level) {
    return level == Level::warning ? "warning: " : level == Level::error ? "error: " : "";
}

}  // namespace

void write(Level level, std::string const& line) {
    State& s = state();
    std::scoped_lock const lock(s.mutex);
    if (s.rank != 0 && level < Level::warning) return;
    std::string const rank = s.rank != 0 ? fmt::format("rank {}: ", s.rank) : "", text = printable(line);
    std::string_view const what = prefix(level);
    std::string_view const colour = level == Level::error ? "\x1b[1;31m" : "\x1b[1;33m";
    std::string const kept = fmt::format("{}{}{}", rank, what, text);
    emit(s, !what.empty() && has_colour() ? fmt::format("{}{}{}\x1b[0m{}", rank, colour, what, text) : kept, kept);
}

void write_styled(std::string const& line, std::string const& styled) {
    State& s = state();
    std::scoped_lock const lock(s.mutex);
    if (s.rank == 0) emit(s, has_colour() ? styled : line, line);
}

}  // namespace perigee::log
