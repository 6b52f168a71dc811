// Rules that need only the place of a query to select its blocks. CPU and GPU run the same code for each query.
#pragma once

#include <concepts>
#include <cstdint>

namespace perigee {

/// Where a query is: the same numbers under every layout of ranks and every packing.
struct QueryPlace {
    int64_t head;      ///< among all query heads of the model
    int64_t position;  ///< in its document
    int64_t block;     ///< its local block in its document: position / block_size
};

/// A rule with this member selects by position.
template <class Rule>
concept SelectsByPosition = requires(Rule const& rule, QueryPlace const& query, int32_t* slots_S) {
    { rule.choose(query, slots_S) } -> std::same_as<void>;
};

/// Writes the top_k - 1 slots of a query: ascending block indices of its past, then -1. A query with no more past
/// blocks than slots gets them all; the rule decides for the others.
template <SelectsByPosition Rule>
constexpr void fill_slots(Rule const& rule, QueryPlace const& query, int32_t* slots_S) {
    int64_t const slots = rule.top_k - 1;
    if (query.block > slots) return rule.choose(query, slots_S);
    for (int64_t s = 0; s < slots; ++s) slots_S[s] = s < query.block ? static_cast<int32_t>(s) : -1;
}

}  // namespace perigee
