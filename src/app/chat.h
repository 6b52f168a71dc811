// A conversation on the terminal, or with lines of a pipe.
#pragma once

#include <functional>

#include "train/session.h"

namespace perigee {

/// Each line of standard input is a message, and the answer to it is printed as it comes. Ctrl-C ends an answer, or
/// what was typed; /new forgets what was said, /exit and the end of the input end the conversation. `alive` is called
/// at least every second and before each token. Throws Category::config without a chat template.
void run_chat(Session& session, RunState const& state, std::function<void()> const& alive);

}  // namespace perigee
