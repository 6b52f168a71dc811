// A job of several ranks inside one process, each a thread: real collectives without MPI, for tests of anything that
// takes a HostComm, thread sanitizer included.
#pragma once

#include <exception>
#include <functional>
#include <vector>

#include "comm/host_comm.h"

namespace perigee::testing {

/// Runs `body` once per rank and returns what each rank threw (null: nothing). When a rank leaves, by return or throw,
/// while others still wait for it in a collective, those throw Category::communication: nothing hangs.
std::vector<std::exception_ptr> try_ranks(int size, std::function<void(HostComm&)> const& body);

/// The same, but rethrows the first error that is not merely the echo of another rank's end.
void run_ranks(int size, std::function<void(HostComm&)> const& body);

}  // namespace perigee::testing
