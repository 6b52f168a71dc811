// Completion of command lines in a shell: commands, options, their choices, and the keys of a configuration.
#pragma once

#include <string>

#include "commands/command.h"

namespace perigee {

enum class Shell { bash, zsh };

/// A script for the shell to source, made from the command table and the schema of a run's options.
std::string completion_script(Shell shell);

Action declare_completion(CLI::App& app);

}  // namespace perigee
