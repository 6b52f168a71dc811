// The commands that run in one process, without the ranks of a job: tokenize, convert, plot, ...
// Each declares its arguments in a file of its own and is named once, in the table of app/command_table.h.
#pragma once

#include <functional>

#include "io/file_system.h"

namespace CLI {
class App;
}

namespace perigee {

/// Runs a command with what was typed; returns the exit code. A request to stop ends the process with 75 meanwhile.
/// Throws Error.
using Action = std::function<int(FileSystem&)>;

/// Each declares its arguments in `app`, which has the command's name and help; the action owns what they are read
/// into.
Action declare_bench(CLI::App& app);
Action declare_calibrate(CLI::App& app);
Action declare_checkpoint(CLI::App& app);
Action declare_convert(CLI::App& app);
Action declare_plot(CLI::App& app);
Action declare_quickstart(CLI::App& app);
Action declare_report(CLI::App& app);
Action declare_study(CLI::App& app);
Action declare_tokenize(CLI::App& app);
Action declare_view(CLI::App& app);

}  // namespace perigee
