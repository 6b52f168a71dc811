// The ranks of a job as a grid (dp, cp, tp): tensor parallel fastest, then context, then data. Gives one Comm per axis.
// A pipeline axis would come between dp and cp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/schema.h"
#include "comm/comm.h"

namespace perigee {

/// How context-parallel ranks share attention: parallel/context.h.
enum class ContextMode { automatic, ulysses, allgather };

/// Whether a rank is bound to the CPUs and the memory next to its GPU: comm/placement.h.
enum class Bind { automatic, none };

struct ParallelOptions {
    int64_t tensor = 1;
    int64_t context = 1;
    int64_t data = -1;  ///< -1: whatever the job's ranks leave
    ContextMode context_mode = ContextMode::automatic;
    bool zero = true;         ///< ZeRO-1: parallel/buckets.h
    int64_t bucket_mib = 64;  ///< of gradients, sent at once
    bool share_gpu = false;   ///< several ranks may compute on one GPU
    Bind bind = Bind::automatic;
};
void describe(Schema& schema, ParallelOptions& options);

/// Sizes of the axes for a world of this many ranks; throws Category::config naming both numbers where they do not fit.
struct MeshShape {
    int dp = 1;
    int cp = 1;
    int tp = 1;
    int world() const { return dp * cp * tp; }
};
MeshShape resolve_mesh(ParallelOptions const& options, int world_size);

class Mesh {
  public:
    Mesh(ParallelOptions const& options, Comm& world);
    /// A mesh whose groups `group` makes from the name and the size of their axis, for who plays a job.
    using MakeGroup = std::function<std::unique_ptr<Comm>(char const* axis, int size)>;
    Mesh(ParallelOptions const& options, Comm& world, MakeGroup const& group);

    MeshShape shape() const { return shape_; }
    ContextMode context_mode() const { return context_mode_; }  ///< as the options ask
    int dp_rank() const { return dp_->rank(); }
    int cp_rank() const { return cp_->rank(); }
    int tp_rank() const { return tp_->rank(); }

    Comm& world() const { return *world_; }
    Comm& dp() const { return *dp_; }
    Comm& cp() const { return *cp_; }
    Comm& tp() const { return *tp_; }
    Comm& dp_cp() const { return *dp_cp_; }  ///< the ranks that hold the same weights and different tokens

  private:
    Comm* world_;
    MeshShape shape_;
    ContextMode context_mode_;
    std::unique_ptr<Comm> dp_, cp_, tp_, dp_cp_;
};

}  // namespace perigee
