// The command line: `perigee train|eval|generate|serve|check CONFIG [key=value...]`.
#pragma once

#include <string>

#include "io/file_system.h"

namespace perigee {

/// Runs one command and returns the process's exit code. All files are reached through `files`. `commit` of the
/// sources, where it is known, is recorded with runs.
int run_app(int argc, char** argv, FileSystem& files, std::string const& commit = {});

}  // namespace perigee
