#include "device/memory_in_use.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace perigee {

namespace {

int64_t resident_bytes() {
    // /proc is the kernel, not a disk: no place for faults to be injected.
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr) return 0;
    long total = 0, resident = 0;
    int const read = std::fscanf(file, "%ld %ld", &total, &resident);
    std::fclose(file);
    return read == 2 ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

MemoryInUse memory_in_use(Device const& device, MemoryInUse const& before) {
    if (!device.is_host()) {
        int64_t const used = device.used_bytes();
        return {used, std::max(before.peak, used)};
    }
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    int64_t const used = resident_bytes(), peak = int64_t{usage.ru_maxrss} * 1024;  // Linux counts it in KiB
    return {used, std::max(used, peak)};
}

}  // namespace perigee
