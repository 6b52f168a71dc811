#include "device/host_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>

namespace perigee {

namespace {

// /proc and /sys are the kernel, not a disk: no place for faults to be injected.
struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using Text = std::unique_ptr<std::FILE, Close>;

struct Machine {
    int64_t memory = 0;  ///< bytes; 0 where it is not known
    int64_t swap = 0;
};

Machine machine() {
    Text const file(std::fopen("/proc/meminfo", "r"));
    Machine found;
    char line[256];
    while (file && std::fgets(line, sizeof line, file.get()) != nullptr) {
        long long kib = 0;
        if (std::sscanf(line, "MemTotal: %lld", &kib) == 1) found.memory = kib << 10;
        if (std::sscanf(line, "SwapTotal: %lld", &kib) == 1) found.swap = kib << 10;
    }
    return found;
}

/// The number in a file; nothing where it holds none, or one that stands for no limit.
std::optional<int64_t> limit_in(std::string const& path) {
    Text const file(std::fopen(path.c_str(), "r"));
    long long bytes = 0;
    if (!file || std::fscanf(file.get(), "%lld", &bytes) != 1 || bytes < 0 || bytes >= 1LL << 60) return std::nullopt;
    return bytes;
}

/// The control group that a line of /proc/self/cgroup says memory is limited by, as a folder below /sys/fs/cgroup.
std::optional<std::string> memory_group(std::string_view line) {
    size_t const first = line.find(':');
    size_t const second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) return std::nullopt;
    std::string const controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    std::string const path(line.substr(second + 1));
    if (controllers == ",,") return path;  // version 2
    if (controllers.find(",memory,") != controllers.npos) return "/memory" + path;
    return std::nullopt;
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

int64_t control_group_bytes(std::string const& root, int64_t swap) {
    Text const file(std::fopen((root + "/proc/self/cgroup").c_str(), "r"));
    int64_t tightest = 0;
    char line[4096];
    while (file && std::fgets(line, sizeof line, file.get()) != nullptr) {
        std::string_view const text(line);
        auto group = memory_group(text.substr(0, text.find('\n')));
        // The limits of all groups around it hold as well. What a container does not see of its path is skipped.
        while (group) {
            std::string const folder = root + "/sys/fs/cgroup" + *group + "/";
            auto limit = limit_in(folder + "memory.max");  // version 2; without swap
            if (limit) *limit += std::min(swap, limit_in(folder + "memory.swap.max").value_or(swap));
            if (!limit) limit = limit_in(folder + "memory.memsw.limit_in_bytes");  // version 1; with swap
            if (!limit && (limit = limit_in(folder + "memory.limit_in_bytes"))) *limit += swap;
            if (limit && (tightest == 0 || *limit < tightest)) tightest = std::max<int64_t>(1, *limit);
            if (group->empty()) break;
            group->resize(group->rfind('/'));
        }
    }
    return tightest;
}

HostMemory host_memory(int local_ranks) {
    HostMemory tightest;
    auto const consider = [&](int64_t bytes, char const* what) {
        if (bytes > 0 && (tightest.bytes == 0 || bytes < tightest.bytes)) tightest = {bytes, what};
    };
    auto const [memory, swap] = machine();
    consider((memory + swap) / local_ranks, "this machine, shared by its ranks,");
    consider(control_group_bytes("", swap) / local_ranks, "the control group, shared by its ranks,");
    consider(address_space_bytes(), "the limit on the address space (ulimit -v)");
    return tightest;
}

}  // namespace perigee
