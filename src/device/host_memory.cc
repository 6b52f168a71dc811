#include "device/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace perigee {

namespace {

// /proc and /sys are the kernel, not a disk: no place for faults to be injected.
struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using Text = std::unique_ptr<std::FILE, Close>;

/// Bytes of physical memory and swap; 0 where it is not known.
int64_t machine_bytes() {
    Text const file(std::fopen("/proc/meminfo", "r"));
    int64_t sum = 0;
    char line[256];
    while (file && std::fgets(line, sizeof line, file.get()) != nullptr) {
        long long kib = 0;
        if (std::sscanf(line, "MemTotal: %lld", &kib) == 1 || std::sscanf(line, "SwapTotal: %lld", &kib) == 1)
            sum += kib << 10;
    }
    return sum;
}

/// The limit of the process's control group, version 2 or 1; 0 without one.
int64_t group_bytes() {
    for (char const* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
        Text const file(std::fopen(path, "r"));
        long long bytes = 0;
        if (file && std::fscanf(file.get(), "%lld", &bytes) == 1 && bytes > 0 && bytes < 1LL << 60) return bytes;
    }
    return 0;
}

/// What the process's own limit leaves of its address space; 0 without a limit.
int64_t address_space_bytes() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
    Text const file(std::fopen("/proc/self/statm", "r"));
    long pages = 0;
    if (!file || std::fscanf(file.get(), "%ld", &pages) != 1) pages = 0;
    return std::max<int64_t>(1, static_cast<int64_t>(limit.rlim_cur) - pages * ::sysconf(_SC_PAGESIZE));
}

}  // namespace

HostMemory host_memory(int local_ranks) {
    HostMemory tightest;
    auto const consider = [&](int64_t bytes, char const* what) {
        if (bytes > 0 && (tightest.bytes == 0 || bytes < tightest.bytes)) tightest = {bytes, what};
    };
    consider(machine_bytes() / local_ranks, "this machine, shared by its ranks,");
    consider(group_bytes() / local_ranks, "the control group, shared by its ranks,");
    consider(address_space_bytes(), "the limit on the address space (ulimit -v)");
    return tightest;
}

}  // namespace perigee
