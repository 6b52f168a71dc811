// Logging for the whole program: lines to standard error and, once there is a run folder, to its log.txt.
// Only rank 0 logs at `info`; every rank may `warn`. Thread-safe.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>

namespace perigee::log {

enum class Level { debug, info, warning, error };

/// Ranks other than 0 drop everything below `warning`, and prefix what they do say with their rank.
void set_rank(int rank);
/// Hands every later line, with its time in front and without a newline, to `sink` as well; an empty one ends that. The
/// first sink of a process also gets the first lines from before it.
void mirror(std::function<void(std::string const&)> sink);
/// Called around each line on the terminal, so that a progress bar can make room and come back.
void around_lines(std::function<void()> before, std::function<void()> after);
void write(Level level, std::string const& line);

/// Whether what this process writes to standard error may have colours: it is a terminal, and NO_COLOR is not set.
bool has_colour();
/// A line of `info` that looks otherwise where has_colour(): `styled` is then written as it is, and the log has `line`.
void write_styled(std::string const& line, std::string const& styled);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace perigee::log
