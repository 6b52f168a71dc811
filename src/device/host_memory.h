// How much memory this process may ever get from the host.
#pragma once

#include <cstdint>
#include <string>

namespace perigee {

struct HostMemory {
    int64_t bytes = 0;  ///< for this process, `local_ranks` of which share the host; 0 where it is not known
    std::string what;   ///< "this machine", "the control group", "the limit on the address space (ulimit -v)"
};

/// The tightest of the machine's memory and swap, the limits of its control groups, and the address space that the
/// process's own limit leaves it.
HostMemory host_memory(int local_ranks);

/// The tightest limit of the process's control group and of all groups around it (versions 1 and 2), with what they
/// allow of the machine's `swap`, in bytes; 0 without one. `root` is put before /proc/self/cgroup and /sys/fs/cgroup.
int64_t control_group_bytes(std::string const& root, int64_t swap);

}  // namespace perigee
