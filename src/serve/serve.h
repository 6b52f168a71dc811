// An HTTP server for one model, in the shape of OpenAI's API: docs/generation.md lists what it understands.
#pragma once

#include <functional>
#include <string>

#include "train/session.h"

namespace perigee {

struct ServeHooks {
    std::function<void()> alive;                           ///< called several times a second
    std::function<bool()> must_stop;                       ///< asked as often, on rank 0
    std::function<void(std::string const&)> listens = {};  ///< called on rank 0 with the server's address
};

/// Serves until it is told to stop; answers that have begun then have 20 seconds to end. Throws Category::config where
/// the address cannot be had. Collective.
void serve_model(Session& session, RunState const& state, ServeHooks const& hooks);

}  // namespace perigee
