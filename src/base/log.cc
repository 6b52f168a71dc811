#include "base/log.h"

#include <fmt/chrono.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <ctime>
#include <memory>
#include <mutex>

#include "base/printable.h"

namespace perigee::log {

namespace {

struct State {
    State() : logger("perigee", std::make_shared<spdlog::sinks::stderr_sink_mt>()) { logger.set_pattern("%v"); }
    std::mutex mutex;
    spdlog::logger logger;
    std::function<void(std::string const&)> mirror;
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
    state().mirror = std::move(sink);
}

void around_lines(std::function<void()> before, std::function<void()> after) {
    std::scoped_lock const lock(state().mutex);
    state().before = std::move(before);
    state().after = std::move(after);
}

void write(Level level, std::string const& line) {
    State& s = state();
    std::scoped_lock const lock(s.mutex);
    if (s.rank != 0 && level < Level::warning) return;
    std::string text = s.rank != 0 ? fmt::format("rank {}: ", s.rank) : "";
    if (level == Level::warning) text += "warning: ";
    if (level == Level::error) text += "error: ";
    text += printable(line);
    if (s.before) s.before();
    s.logger.info(text);
    s.logger.flush();
    if (s.after) s.after();
    if (s.mirror) s.mirror(fmt::format("{:%Y-%m-%d %H:%M:%S}  {}", fmt::localtime(std::time(nullptr)), text));
}

}  // namespace perigee::log
