// The keys that queries of an attention operation attend.
#pragma once

#include <variant>

#include "kernels/block_selection/selection.h"
#include "tensor/tensor.h"

namespace perigee {

/// Attention over the local block and selected ones.
struct BlockSparse {
    BlockBudget budget;
    ConstView chosen_THS = {};  ///< from SelectBlocks
    /// For every block the queries that selected it, int32, routing_size() of them: the forward writes it for the
    /// backward. Or none.
    TensorView routing_L = {};
};
/// The keys that queries attend.
using Attended = std::variant<FullAttention, BlockSparse>;

}  // namespace perigee
