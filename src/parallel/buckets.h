// The ranks that hold the same weights (dp x cp) sum their gradients and share the optimizer: ZeRO stage 1 (Rajbhandari
// et al. 2020). The flat parameter buffer is cut into buckets and every bucket into one share per rank, so that a
// bucket is on its way while earlier blocks still compute theirs.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "parallel/mesh.h"
#include "parallel/param_spec.h"

namespace perigee {

/// Buckets of about equal size, in order and without gaps. All but the last divide into equal shares; the last, shorter
/// than the number of ranks and often absent, belongs to rank 0.
class Buckets {
  public:
    /// Buckets of at most `target` elements, or of one per rank where that is more.
    Buckets(int64_t size, int64_t target, int ranks);

    int64_t count() const { return std::ssize(begins_) - 1; }
    FlatRange range(int64_t bucket) const;
    bool divides(int64_t bucket) const { return range(bucket).size() % ranks_ == 0; }
    FlatRange share(int64_t bucket, int rank) const;
    int64_t largest_share() const;
    /// All shares of a rank, in order, neighbours joined.
    std::vector<FlatRange> shares(int rank) const;

  private:
    std::vector<int64_t> begins_;  ///< of every bucket, and the end
    int ranks_;
};

/// Those of a rank of such a mesh, `parallel.bucket_mib` of fp32 gradients each.
Buckets make_buckets(ParallelOptions const& options, ParamLayout const& layout, MeshShape const& shape);

/// What a rank of the mesh answers for, as ranges of its flat buffer.
struct Ownership {
    std::vector<FlatRange> owned;    ///< the whole mesh owns each parameter once: norms count it, checkpoints store it
    std::vector<FlatRange> updated;  ///< where the optimizer keeps moments: its shares with ZeRO, otherwise everything
};
Ownership resolve_ownership(ParamLayout const& layout, Buckets const& buckets, Mesh const& mesh, bool zero);

/// Every rank makes the same calls in the same order.
class Replicas {
  public:
    Replicas(ParamLayout const& layout, Buckets buckets, Mesh const& mesh, bool zero, Device& device);

    Ownership const& ownership() const { return ownership_; }

    /// The gradients from element `begin` on are complete on this rank: begins to sum, over the ranks, every bucket
    /// that lies there and is not yet summed. After begin = 0 the next call belongs to the next step. With ZeRO a rank
    /// receives the sums of its own shares, and what the rest of `grads` holds is of no use any more.
    void reduce_from(TensorView grads, int64_t begin);
    /// What is computed from now on finds all sums begun.
    void await_sums();
    /// With ZeRO, begins to collect the shares that the other ranks have updated.
    void gather(TensorView weights);
    /// What is computed from now on finds all weights.
    void await_weights();

  private:
    void reduce(TensorView grads, int64_t bucket);

    Buckets buckets_;
    Comm* sums_comm_;
    Comm* gather_comm_;
    Device* device_;
    bool zero_;
    Ownership ownership_;
    int64_t pending_;                      ///< buckets not yet summed in this step
    std::vector<Pending> sums_, gathers_;  ///< begun
};

}  // namespace perigee
