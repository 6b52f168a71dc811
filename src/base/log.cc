#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace perigee::log {

namespace {

struct State {
    State() : logger("perigee", std::make_shared<spdlog::sinks::stderr_sink_mt>()) { logger.set_pattern("%v"); }
    spdlog::logger logger;
    int rank = 0;
};

// The one process-wide object: a log is process-wide by nature.
State& state() {
    static State instance;
    return instance;
}

}  // namespace

void set_rank(int rank) { state().rank = rank; }

void open_file(std::string const& path) {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
    sink->set_pattern("%Y-%m-%d %H:%M:%S  %v");
    state().logger.sinks().push_back(std::move(sink));
}

void write(Level level, std::string const& line) {
    State& s = state();
    if (s.rank != 0 && level < Level::warning) return;
    std::string prefix = s.rank != 0 ? fmt::format("rank {}: ", s.rank) : "";
    if (level == Level::warning) prefix += "warning: ";
    if (level == Level::error) prefix += "error: ";
    s.logger.log(spdlog::level::info, "{}{}", prefix, line);
    s.logger.flush();
}

}  // namespace perigee::log
