// How much memory this process may ever get from the host.
#pragma once

#include <cstdint>
#include <string>

namespace perigee {

struct HostMemory {
    int64_t bytes = 0;  ///< for this process, `local_ranks` of which share the host; 0 where it is not known
    std::string what;   ///< "this machine", "the control group", "the limit on the address space (ulimit -v)"
};

/// The tightest of the machine's memory and swap, its control group's limit, and the address space that the process's
/// own limit leaves it.
HostMemory host_memory(int local_ranks);

}  // namespace perigee
