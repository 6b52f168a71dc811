// Numbers of the command line.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "config/scalars.h"

namespace perigee {

/// CLI11's own ranges let NaN through.
inline CLI::Validator number_between(double low, double high) {
    auto const refuse = [low, high](std::string& text) {
        auto const number = to_number(text);
        if (number && *number >= low && *number <= high) return std::string();
        return fmt::format("must be a number between {} and {}, found {}", low, high, text);
    };
    return {refuse, fmt::format("{} to {}", low, high)};
}

}  // namespace perigee
