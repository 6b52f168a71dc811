// How the ranks of a job succeed or fail together.
#pragma once

#include <exception>
#include <string>

#include "comm/comm.h"

namespace perigee {

/// Runs `action`, which must not communicate, on this rank. When it fails on any rank, every rank throws
/// Category::checkpoint with the first failing rank's message, so that none waits for another. Collective.
template <class Action>
void agree(Comm& world, Action&& action) {
    std::string error;
    try {
        action();
    } catch (std::exception const& e) {
        error = fmt::format("{}{}", world.size() > 1 ? fmt::format("rank {}: ", world.rank()) : "", e.what());
        if (error.empty()) error = "unknown error";
    }
    for (std::string const& text : world.gather_text(error)) {
        if (!text.empty()) throw Error(Category::checkpoint, text);
    }
}

}  // namespace perigee
