#include "device/numa.h"

#include <dirent.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>

namespace perigee {

namespace {

constexpr int kMostCpus = 8192;  // as many as Linux can be built for
constexpr int kMostNodes = 1024;

/// A set of CPUs in the kernel's form.
class CpuMask {
  public:
    cpu_set_t* get() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
    static constexpr size_t bytes() { return kMostCpus / 8; }
    void add(int cpu) { CPU_SET_S(static_cast<size_t>(cpu), bytes(), get()); }
    bool has(int cpu) { return CPU_ISSET_S(static_cast<size_t>(cpu), bytes(), get()); }

  private:
    std::array<unsigned long, kMostCpus / 8 / sizeof(unsigned long)> words_{};
};

/// The first line of a file of the kernel; empty where there is none.
std::string line_of(std::filesystem::path const& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

std::optional<int> number(std::string_view text) {
    int value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

}  // namespace

CpuList parse_cpu_list(std::string_view text) {
    CpuList cpus;
    while (!text.empty()) {
        size_t const comma = std::min(text.find(','), text.size());
        std::string_view const range = text.substr(0, comma);
        text.remove_prefix(std::min(comma + 1, text.size()));
        size_t const dash = std::min(range.find('-'), range.size());
        auto const first = number(range.substr(0, dash));
        auto const last = dash < range.size() ? number(range.substr(dash + 1)) : first;
        if (!first || !last || *first < 0 || *last >= kMostCpus) continue;
        for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    }
    std::ranges::sort(cpus);
    cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
    return cpus;
}

std::string to_text(CpuList const& cpus) {
    std::string text;
    for (size_t begin = 0; begin < cpus.size();) {
        size_t end = begin + 1;
        while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
        text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[begin]);
        if (end - begin > 1) text += fmt::format("-{}", cpus[end - 1]);
        begin = end;
    }
    return text.empty() ? "none" : text;
}

CpuList common(CpuList const& a, CpuList const& b) {
    CpuList both;
    std::ranges::set_intersection(a, b, std::back_inserter(both));
    return both;
}

NumaNode numa_node_of(std::string const& pci_id, std::filesystem::path const& sys) {
    auto const node = number(line_of(sys / "bus/pci/devices" / pci_id / "numa_node"));
    if (!node || *node < 0 || *node >= kMostNodes) return {};
    CpuList cpus = parse_cpu_list(line_of(sys / fmt::format("devices/system/node/node{}/cpulist", *node)));
    if (cpus.empty()) return {};
    return {.id = *node, .cpus = std::move(cpus)};
}

CpuList allowed_cpus() {
    CpuMask mask;
    CpuList cpus;
    if (::sched_getaffinity(0, CpuMask::bytes(), mask.get()) != 0) return cpus;
    for (int cpu = 0; cpu < kMostCpus; ++cpu)
        if (mask.has(cpu)) cpus.push_back(cpu);
    return cpus;
}

Bound bind_process(CpuList const& cpus, int node) noexcept {
    Bound bound;
    CpuMask mask;
    for (int cpu : cpus) mask.add(cpu);
    // Libraries have started threads already: OpenBLAS when it was loaded, MPI when it was initialised.
    if (DIR* tasks = ::opendir("/proc/self/task"); tasks != nullptr && !cpus.empty()) {
        bound.cpus = true;
        while (dirent const* task = ::readdir(tasks)) {
            if (int const id = std::atoi(task->d_name); id > 0)
                bound.cpus &= ::sched_setaffinity(id, CpuMask::bytes(), mask.get()) == 0 || errno == ESRCH;
        }
        ::closedir(tasks);
    }
    if (node >= 0 && node < kMostNodes) {
        constexpr size_t kBits = 8 * sizeof(unsigned long);
        std::array<unsigned long, kMostNodes / kBits> nodes{};
        nodes[static_cast<size_t>(node) / kBits] = 1UL << (static_cast<size_t>(node) % kBits);
        bound.memory = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), kMostNodes) == 0;
    }
    return bound;
}

}  // namespace perigee
