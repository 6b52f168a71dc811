// Where the ranks of a job are, and which GPU and CPUs each takes. Pure functions of what the ranks report, so that
// every rank comes to the same result, and a test can invent hosts.
//
// Ranks that share memory (Launch::board) share a host. On a host, ranks choose GPUs in rank order. Each takes the
// least used GPU that it sees, the first of equals: GPU i for local rank i if every rank sees all GPUs, index 0 if the
// launcher shows each rank only its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/numa.h"

namespace perigee {

/// What one rank sees of its host.
struct RankReport {
    struct Gpu {
        std::string pci_id;
        NumaNode near;
    };
    std::string host;         ///< a name for people
    int first_of_host = 0;    ///< the lowest rank among those on its host: what tells hosts apart
    CpuList cpus;             ///< that it may run on
    std::vector<Gpu> gpus;    ///< in CUDA's order; empty where it did not look for any
    std::string gpu_problem;  ///< why GPUs that are there cannot be used

    std::string to_text() const;
    /// Throws Category::communication for what to_text() did not write.
    static RankReport from_text(std::string const& text);
};

/// What one rank takes.
struct Seat {
    int host = 0;          ///< index into Placement::hosts
    int local_rank = 0;    ///< index into Placement::Host::ranks
    int gpu = -1;          ///< index among the GPUs it sees; -1: it computes on the CPU
    int gpu_of_host = -1;  ///< the same GPU's index into Placement::Host::gpus
    int node = -1;         ///< NUMA node to bind to; -1: none
    CpuList cpus;          ///< to run on: those of `node` that it may use, or all it may use
    int cores = 1;         ///< its part of `cpus`, at least 1: ranks on the same CPUs share them
};

struct Placement {
    struct Host {
        std::string name;
        std::vector<int> ranks;         ///< ascending
        std::vector<std::string> gpus;  ///< PCI ids of all that its ranks see
        std::string gpu_problem;        ///< of a rank there that has one
    };
    std::vector<Host> hosts;  ///< in the order of their first ranks
    std::vector<Seat> seats;  ///< by rank

    int ranks() const { return static_cast<int>(seats.size()); }
    /// Host of every rank.
    std::vector<int> host_of() const;
};

/// Hosts, local ranks and cores; every rank on the CPU.
Placement place_ranks(std::span<RankReport const> reports);

struct GpuOptions {
    bool share = false;  ///< several ranks may take one GPU
    bool bind = true;    ///< choose the CPUs near the GPU
};
/// Gives every rank a GPU. Throws Category::config naming each host that has fewer GPUs than ranks, unless it may share
/// them; a host without any is refused either way.
void give_gpus(Placement& placement, std::span<RankReport const> reports, GpuOptions const& options);

/// For the log: one line for all hosts where they are several, then one for each (of many, the first few).
std::vector<std::string> describe(Placement const& placement);

}  // namespace perigee
