// How `--help` looks: at most 79 columns.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace perigee {

class HelpFormatter : public CLI::Formatter {
  public:
    std::string make_option(CLI::Option const* option, bool is_positional) const override;
    std::string make_subcommand(CLI::App const* command) const override;
};

}  // namespace perigee
