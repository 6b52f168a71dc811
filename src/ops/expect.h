// What checks of operations are made of. All throw Category::internal.
#pragma once

#include <cmath>

#include "ops/attended.h"

namespace perigee {

inline void expect(char const* what, ConstView view, Shape const& shape) {
    PERIGEE_CHECK(!view.empty() && view.shape == shape, "{} is {}{}, expected {}", what,
                  view.empty() ? "missing, " : "", view.shape.str(), shape.str());
}
inline void expect_optional(char const* what, ConstView view, Shape const& shape) {
    if (!view.empty()) expect(what, view, shape);
}
/// Of no heads there may be no memory.
inline void expect_heads(char const* what, ConstView view, Shape const& shape) {
    if (shape[1] > 0 || view.shape != shape) expect(what, view, shape);
}
inline void expect_rank(char const* what, ConstView view, int rank) {
    PERIGEE_CHECK(view.shape.rank() == rank, "{} is {}, expected {} dimensions", what, view.shape.str(), rank);
}
inline void check_budget(BlockBudget const& budget, ConstView chosen_THS, Shape const& q) {
    PERIGEE_CHECK(budget.block_size > 0 && budget.top_k > 0, "blocks of {} and top_k {}", budget.block_size,
                  budget.top_k);
    if (budget.slots() > 0)
        PERIGEE_CHECK(chosen_THS.shape == Shape({q[0], q[1], budget.slots()}), "choice {} for q {} and top_k {}",
                      chosen_THS.shape.str(), q.str(), budget.top_k);
}

/// `force_first` needs a slot for block 0 and at least one for the gate.
inline void check_forced(Selection const& selection) {
    auto const* const gate = std::get_if<MobaOptions>(&selection);
    PERIGEE_CHECK(gate == nullptr || !gate->force_first || gate->top_k >= MobaOptions::kLeastForced,
                  "the first block forced with top_k {}", gate->top_k);
}

inline void check_scale(double scale) {
    PERIGEE_CHECK(scale > 0 && std::isfinite(scale), "attention with a scale of {}, which is not positive and finite",
                  scale);
}

}  // namespace perigee
