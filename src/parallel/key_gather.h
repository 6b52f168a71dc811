// Keys and values of a whole pack on every context-parallel rank, for the layer at work, and the sums of their
// gradients. Both travel on a lane beside the compute queue: begun when a part is there, waited for where it is used.
#pragma once

#include "comm/comm.h"
#include "ops/ops.h"
#include "parallel/context.h"
#include "tensor/arena.h"

namespace perigee {

/// The lane for attention's collectives over the context axis.
inline constexpr char const* kContextLane = "context";

class KeyGather {
  public:
    /// Takes memory for the keys and values of all T tokens, `all_TGK` each, from `cp`, which keeps it; with zigzag
    /// shards also from `arena`, as ranks' parts are then no ranges of the pack.
    KeyGather(Ops& ops, Comm& cp, ContextShard const& shard, Shape const& all_TGK, Arena& arena);

    /// Starts to gather from k and v of this rank's tokens, [Tl, G, K]. Overwrites the previous keys and values: what
    /// reads them must be queued already. group() then returns `group`.
    void begin(ConstView k_TGK, ConstView v_TGK, int64_t group = 0);
    int64_t group() const { return group_; }
    /// Of the pack, in its order: what is queued from now on finds them there. Keys travel first.
    TensorView keys() { return arrive(keys_); }
    TensorView values() { return arrive(values_); }

    /// Sums over the ranks of the pack's dk and dv, for this rank's tokens. keys() and values() are then of no use.
    struct Sums {
        ConstView all_dk_TGK, all_dv_TGK;
        TensorView dk_TGK, dv_TGK;
    };
    void begin_sums(Sums const& sums);
    /// What is queued from now on finds the sums.
    void end_sums();

  private:
    struct Tensor {
        TensorView by_rank;  ///< the ranks' parts one after the other
        TensorView all;      ///< in the order of the pack
        Pending done = {};
        bool under_way = false;
    };
    bool zigzag() const { return shard_.ranges().size() > 1; }
    TensorView arrive(Tensor& x);
    /// On the lane, after all that is queued in the compute queue now.
    Queue& lane();

    Ops* ops_;
    Comm* cp_;
    ContextShard shard_;
    Tensor keys_, values_;
    int64_t group_ = 0;
    Pending sums_;
};

}  // namespace perigee
