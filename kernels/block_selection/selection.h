// Who is attended: every key of the past, or the local block and up to k - 1 past blocks that a rule selects. Selection
// is the one list of rules. How to add one: README.md in this folder.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <variant>

#include "kernels/block_selection/nearest_blocks.h"
#include "kernels/block_selection/random_blocks.h"
#include "kernels/block_selection/sink_nearest_blocks.h"
#include "kernels/moba_gate/options.h"

namespace perigee {

/// Full causal attention inside each document.
struct FullAttention {
    static constexpr char const* kName = "full";
};

using Selection = std::variant<FullAttention, MobaOptions, NearestBlocks, SinkNearestBlocks, RandomBlocks>;

/// The keys a query may attend under a rule: its local block and `slots()` blocks before it.
struct BlockBudget {
    int64_t block_size = 0;  ///< B: keys per block
    int64_t top_k = 0;       ///< k: blocks a query attends, the local one included
    int64_t slots() const { return top_k - 1; }
    bool operator==(BlockBudget const&) const = default;
};

/// The budget of a rule; none for full attention.
inline std::optional<BlockBudget> budget_of(Selection const& selection) {
    return std::visit(
        [](auto const& rule) -> std::optional<BlockBudget> {
            if constexpr (std::is_same_v<decltype(rule), FullAttention const&>)
                return std::nullopt;
            else
                return BlockBudget{rule.block_size, rule.top_k};
        },
        selection);
}

inline bool is_full(Selection const& selection) { return std::holds_alternative<FullAttention>(selection); }

}  // namespace perigee
