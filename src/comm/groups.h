// The groups of ranks that a mesh is made of, with tensor collectives by one backend.
#pragma once

#include <memory>
#include <string>

#include "comm/comm.h"

namespace perigee {

/// What carries tensors between ranks.
enum class CommChoice {
    automatic,  ///< NCCL between GPUs, MPI between CPUs
    nccl,
    mpi  ///< through memory of the host
};

/// The ranks of a job that give the same color, ordered by `key`.
struct Group {
    Axis axis = Axis::all;
    int size = 1;  ///< the same on all ranks
    int color = 0;
    int key = 0;
};

/// Where a job is only foreseen: whether its ranks are on one host, if hosts have 8 GPUs.
constexpr bool foreseen_on_one_host(int ranks) { return ranks <= 8; }

class GroupMaker {
  public:
    virtual ~GroupMaker() = default;
    /// All ranks of the job make the same groups in the same order.
    virtual std::unique_ptr<Comm> make(Group const& group) = 0;
    /// What has failed in a group since it was made; empty where nothing has. Shows on the board what its GPU waits in.
    /// Any thread may call it.
    virtual std::string failure() { return {}; }
};

/// Over memory of the host, by the messages of `world`, which outlives it.
std::unique_ptr<GroupMaker> make_host_groups(HostComm& world);

/// What the ranks of a host do with its GPUs.
struct GpuRanks {
    bool share = false;            ///< they may compute on the same one
    bool register_memory = false;  ///< where none do and there is one host: Comm::allocate
};

/// The backend that `choice` means for tensors on this device, over the ranks of `world`, which outlives it.
/// Collective. Throws Category::config where this build or device does not have it.
std::unique_ptr<GroupMaker> make_group_maker(CommChoice choice, HostComm& world, Device& device, GpuRanks const& ranks);

}  // namespace perigee
