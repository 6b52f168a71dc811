// CPUs and NUMA nodes near a GPU, as Linux tells them, and binding a process to them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace perigee {

/// CPU numbers in ascending order, each once.
using CpuList = std::vector<int>;

/// Reads Linux's form of a list, such as "0-3,8"; what is malformed is left out.
CpuList parse_cpu_list(std::string_view text);
/// The same form; "none" for an empty list.
std::string to_text(CpuList const& cpus);
CpuList common(CpuList const& a, CpuList const& b);

/// A NUMA node; `id` -1 where a device is near to none in particular.
struct NumaNode {
    int id = -1;
    CpuList cpus;  ///< empty where `id` is -1
};

/// The node next to a PCI device, such as "0000:19:00.0", as `sys` describes it.
NumaNode numa_node_of(std::string const& pci_id, std::filesystem::path const& sys = "/sys");

/// CPUs that the calling thread may run on.
CpuList allowed_cpus();

/// What binding did.
struct Bound {
    bool cpus = false;    ///< every thread of the process runs on the given CPUs
    bool memory = false;  ///< new pages come from the node while it has some
};

/// Binds all threads of this process, and those that they start later, to `cpus`, and asks for memory of `node`. Call
/// it before memory is touched: pages stay where they are. What the system forbids (containers often forbid the second)
/// is left as it was. -1: no node.
Bound bind_process(CpuList const& cpus, int node) noexcept;

}  // namespace perigee
