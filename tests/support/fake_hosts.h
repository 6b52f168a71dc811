// Ranks and hosts for tests of placement: what every rank of an invented job would report.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "comm/placement.h"

namespace perigee::testing {

inline constexpr int kCpusOfNode = 16;

/// A host of two NUMA nodes with 16 CPUs each; the first half of its GPUs is next to node 0.
struct FakeHost {
    std::string name;
    int gpus = 0;
};

inline CpuList cpus_of_node(int node) {
    return parse_cpu_list(fmt::format("{}-{}", node * kCpusOfNode, (node + 1) * kCpusOfNode - 1));
}

inline RankReport::Gpu fake_gpu(int index, int gpus) {
    int const node = 2 * index / gpus;
    return {.pci_id = fmt::format("0000:{:02x}:00.0", 16 * (index + 1)),
            .near = {.id = node, .cpus = cpus_of_node(node)}};
}

/// `host_of_rank` names the host of every rank, in rank order.
inline std::vector<RankReport> report(std::vector<FakeHost> const& hosts,
                                      std::vector<std::string> const& host_of_rank) {
    std::map<std::string, int> gpus, first;
    for (FakeHost const& host : hosts) gpus[host.name] = host.gpus;
    std::vector<RankReport> reports;
    for (std::string const& host : host_of_rank) {
        auto const rank = static_cast<int>(reports.size());
        RankReport& report = reports.emplace_back();
        report.host = host;
        report.first_of_host = first.try_emplace(host, rank).first->second;
        report.cpus = parse_cpu_list(fmt::format("0-{}", 2 * kCpusOfNode - 1));
        for (int i = 0; i < gpus.at(host); ++i) report.gpus.push_back(fake_gpu(i, gpus.at(host)));
    }
    return reports;
}

/// Hosts filled one after the other.
inline std::vector<std::string> by_host(std::vector<std::pair<std::string, int>> const& ranks) {
    std::vector<std::string> list;
    for (auto const& [host, count] : ranks) list.insert(list.end(), static_cast<size_t>(count), host);
    return list;
}

/// Ranks dealt out over the hosts in turns, as `mpirun --map-by node` does.
inline std::vector<std::string> in_turns(std::vector<std::string> const& hosts, int ranks) {
    std::vector<std::string> list;
    for (int i = 0; i < ranks; ++i) list.push_back(hosts[static_cast<size_t>(i) % hosts.size()]);
    return list;
}

}  // namespace perigee::testing
