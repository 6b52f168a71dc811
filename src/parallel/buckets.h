// How the ranks that hold the same weights (dp x cp) share gradients and optimizer: Rajbhandari et al., ZeRO (2020).
// Every unit of the flat parameter buffer is cut into buckets, and every bucket into one share per rank.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/param_spec.h"

namespace perigee {

/// Buckets of at most a target size, in order and without gaps, each of one unit and in equal shares.
class Buckets {
  public:
    /// Buckets have at most `target` elements, but at least unit_multiple(ranks). Unit sizes must be multiples of that.
    Buckets(ParamLayout const& layout, int64_t target, int ranks);

    int ranks() const { return ranks_; }
    int64_t count() const { return std::ssize(begins_) - 1; }
    FlatRange range(int64_t bucket) const;
    FlatRange share(int64_t bucket, int rank) const;
    /// All shares of a rank, in order, neighbours joined.
    std::vector<FlatRange> shares(int rank) const;
    /// Those of a unit: [begin, end).
    FlatRange of_unit(int unit) const { return units_.at(static_cast<size_t>(unit)); }

  private:
    std::vector<int64_t> begins_;  ///< of every bucket, and the end
    std::vector<FlatRange> units_;
    int ranks_;
};

/// What units divide by so that every bucket's shares are equal and aligned. 1 for one rank, whose buffer has no gaps.
inline int64_t unit_multiple(int ranks) { return ranks == 1 ? 1 : int64_t{64} * ranks; }

/// What a rank of the mesh answers for, as ranges of its flat buffer.
struct Ownership {
    std::vector<FlatRange> owned;    ///< the whole mesh owns each parameter once: norms count it, checkpoints store it
    std::vector<FlatRange> updated;  ///< where the optimizer keeps moments: this rank's shares, or everything
};

/// What is sharded, and how.
struct Sharding {
    /// `stage` automatic means `optimizer`; one rank shards nothing.
    Sharding(ParamLayout const& layout, Mesh const& mesh, ShardStage stage, int64_t bucket_elements);
    /// As these options say.
    Sharding(ParamLayout const& layout, Mesh const& mesh, ParallelOptions const& options);

    ShardStage stage;
    Buckets buckets;
    Ownership ownership;

    /// Where each bucket's share begins in memory that holds this rank's shares alone, one after the other.
    std::vector<int64_t> packed_begins;

    int64_t updated_elements() const;
    /// The ranges of ownership.updated in a flat buffer, or, `packed`, in memory that holds them one after the other.
    std::vector<FlatPart> updated(TensorView memory, bool packed) const;
};

}  // namespace perigee
