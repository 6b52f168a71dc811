// Ulysses' exchange: from all heads of a rank's tokens to all tokens of a rank's heads, and back.
#pragma once

#include <initializer_list>

#include "comm/comm.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace perigee {

class HeadExchange {
  public:
    /// Scratch memory comes from `arena`.
    HeadExchange(Ops& ops, Comm& cp, Arena& arena) : ops_(&ops), cp_(&cp), arena_(&arena) {}

    struct Move {
        ConstView from;
        TensorView to;
    };
    /// From [Tl, X, K] of this rank's tokens to [T, X / cp, K] of this rank's heads, all tensors in one exchange.
    void to_heads(std::initializer_list<Move> moves) const;
    /// The inverse of to_heads.
    void to_tokens(std::initializer_list<Move> moves) const;

  private:
    struct Buffers {
        TensorView send, receive;
        int64_t part;  ///< elements for each rank
    };
    Buffers buffers(std::initializer_list<Move> moves) const;
    /// What is queued from now on finds what was received.
    void exchange(Buffers const& x) const;

    Ops* ops_;
    Comm* cp_;
    Arena* arena_;
};

}  // namespace perigee
