// The command table as CLI11 sees it: what parsing, help and completion are made from.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "app/command_line.h"

namespace perigee {

/// Every command with its arguments, and what they are read into. Stays where it was made: `app` points into it.
struct CommandApp {
    CommandApp();
    CommandApp(CommandApp const&) = delete;
    CommandApp& operator=(CommandApp const&) = delete;

    CLI::App app;
    CommandLine job;
    LocalCommand local;  ///< its name is empty where a command of a job was typed
    std::string prompt, system, suite, input, output, host;
    int64_t max_tokens = 0, port = 0;
    bool mock_data = false, chat = false;
};

}  // namespace perigee
