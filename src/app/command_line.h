// What the user typed: `perigee COMMAND ...`, for a job `perigee train|eval|generate|serve|check CONFIG
// [key=value...]`. Knows nothing of what options mean.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "commands/command.h"

namespace perigee {

/// What the ranks of a job do.
enum class Command { train, eval, generate, serve, check };

struct CommandLine {
    Command command = Command::train;
    std::string config;                  ///< path of the YAML file
    std::vector<std::string> overrides;  ///< "key=value" in order; flags such as --prompt come last, as overrides
    int world_size = 0;                  ///< check: ranks to plan for; 0: as many as run it
    std::string device;                  ///< check: whose time; a name or a file of device_rates()
    bool fit = false;                    ///< check: print the best layouts instead
    bool folder = false;                 ///< check: print output_dir instead
};

/// A command of one process, whose arguments are read.
struct LocalCommand {
    std::string name;
    Action action;
};

/// Text to print instead of running a command: help and version (exit code 0, to stdout), or what is wrong with the
/// command line (exit code 2, to stderr).
struct CommandLineNotice {
    std::string text;
    int exit_code = 0;
};

using Parsed = std::variant<CommandLine, LocalCommand, CommandLineNotice>;

/// Prints nothing itself, so that a job of many ranks can say it once.
Parsed parse_command_line(int argc, char const* const* argv);

}  // namespace perigee
