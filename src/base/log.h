// Logging for the whole program: lines to standard error and, once opened, to the run's log file.
// Only rank 0 logs at `info`; every rank may `warn`. Thread-safe.
#pragma once

#include <fmt/format.h>

#include <string>

namespace perigee::log {

enum class Level { debug, info, warning, error };

/// Ranks other than 0 drop everything below `warning`, and prefix what they do say with their rank.
void set_rank(int rank);
/// Appends every later line to this file as well.
void open_file(std::string const& path);
void write(Level level, std::string const& line);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace perigee::log
