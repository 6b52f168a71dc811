// The ranks of a job as a grid (dp, cp, tp): tensor parallel fastest, then context, then data. Gives one Comm per axis;
// its host() is the same ranks for values of the host. Pipeline and expert axes, between dp and cp, always have one
// rank.
#pragma once

#include <cstdint>
#include <memory>

#include "base/schema.h"
#include "comm/groups.h"

namespace perigee {

/// How context-parallel ranks share attention: parallel/context.h.
enum class ContextMode { automatic, ulysses, allgather };

/// Whether a rank is bound to the CPUs and the memory next to its GPU: comm/placement.h.
enum class Bind { automatic, none };

/// What is sharded over the ranks that would otherwise hold the same copy. Each stage includes the stages before it.
enum class ShardStage { automatic, none, optimizer, gradients, weights };

struct ParallelOptions {
    int64_t tensor = 1;
    int64_t context = 1;
    int64_t data = -1;  ///< -1: whatever the job's ranks leave
    ContextMode context_mode = ContextMode::automatic;
    int64_t head_groups = 1;  ///< AttentionProblem::head_groups
    ShardStage shard = ShardStage::automatic;
    int64_t bucket_mib = 1024;  ///< of gradients, sent at once
    CommChoice comm = CommChoice::automatic;
    bool share_gpu = false;       ///< several ranks may compute on one GPU
    bool register_memory = true;  ///< GpuRanks
    Bind bind = Bind::automatic;

    GpuRanks gpu_ranks() const { return {.share = share_gpu, .register_memory = register_memory}; }
};
void describe(Schema& schema, ParallelOptions& options);

/// Sizes of the axes for a world of this many ranks; throws Category::config naming both numbers where they do not fit.
struct MeshShape {
    int dp = 1;
    int cp = 1;
    int tp = 1;
    int pp = 1;  ///< pipeline: always one rank
    int ep = 1;  ///< experts: always one rank
    int world() const { return dp * pp * ep * cp * tp; }
};
MeshShape resolve_mesh(ParallelOptions const& options, int world_size);

class Mesh {
  public:
    /// Groups for tensors in memory of the host. `world` outlives the mesh. Collective.
    Mesh(ParallelOptions const& options, HostComm& world);
    /// Groups for tensors on this device. `world` outlives the mesh. Collective.
    Mesh(ParallelOptions const& options, HostComm& world, Device& device);
    /// A mesh of given groups, for dry runs and phantoms.
    Mesh(ParallelOptions const& options, HostComm& world, std::unique_ptr<GroupMaker> groups);

    MeshShape shape() const { return shape_; }
    ContextMode context_mode() const { return context_mode_; }  ///< as the options ask
    int64_t head_groups() const { return head_groups_; }
    int dp_rank() const { return dp_->rank(); }
    int cp_rank() const { return cp_->rank(); }
    int tp_rank() const { return tp_->rank(); }

    HostComm& world() const { return *world_; }
    Comm& dp() const { return *dp_; }
    Comm& cp() const { return *cp_; }
    Comm& tp() const { return *tp_; }
    Comm& dp_cp() const { return *dp_cp_; }  ///< the ranks that hold the same weights and different tokens
    /// The same ranks again: its collectives and those of dp_cp() need not keep an order.
    Comm& dp_cp_gather() const { return *dp_cp_gather_; }
    Comm& pp() const { return *pp_; }
    Comm& ep() const { return *ep_; }

    /// As GroupMaker::failure().
    std::string failure() const { return groups_->failure(); }

  private:
    HostComm* world_;
    MeshShape shape_;
    ContextMode context_mode_;
    int64_t head_groups_;
    std::unique_ptr<GroupMaker> groups_;  ///< outlives the groups
    std::unique_ptr<Comm> tp_, cp_, dp_, dp_cp_, dp_cp_gather_, pp_, ep_;
};

}  // namespace perigee
