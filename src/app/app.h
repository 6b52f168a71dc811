// The command line: `perigee train|eval|generate|check CONFIG [key=value...]`.
#pragma once

#include "io/file_system.h"

namespace perigee {

/// Runs one command and returns the process's exit code. All files are reached through `files`.
int run_app(int argc, char** argv, FileSystem& files);

}  // namespace perigee
