// The request to stop, from a signal or from the launcher. A request is kept: whoever looks later still sees it.
#pragma once

namespace perigee {

/// Catches SIGTERM, SIGUSR1, SIGINT and SIGHUP: the first thing in main. SIGINT and SIGHUP stay ignored where the
/// caller ignores them (`nohup`, jobs in the background). A signal that comes half a second or more after the request
/// ends the process at once with code 128 + signal; an earlier one is part of the request, as `timeout` and terminals
/// send it twice.
void catch_stop_signals() noexcept;

/// Does what a first signal does. Any thread.
void request_stop() noexcept;

/// Whether this process was asked to stop. Ranks must agree through a collective before acting on it. Any thread.
bool stop_requested() noexcept;

}  // namespace perigee
