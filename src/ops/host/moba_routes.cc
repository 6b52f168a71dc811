#include "ops/host/moba_routes.h"

#include <algorithm>
#include <numeric>

namespace perigee::host {

BlockGrid::BlockGrid(std::span<int32_t const> cu_seqlens, int64_t size) : block_size(size) {
    for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
        first.push_back(static_cast<int64_t>(blocks.size()));
        for (int64_t begin = cu_seqlens[d]; begin < cu_seqlens[d + 1]; begin += block_size)
            blocks.push_back({begin, std::min<int64_t>(begin + block_size, cu_seqlens[d + 1])});
    }
    first.push_back(static_cast<int64_t>(blocks.size()));
}

namespace {

/// The choice of the query heads [first_head, last_head), which share a key/value head.
struct GroupChoice {
    int32_t const* chosen_THS;
    Segment queries;
    int64_t first_head, last_head, heads, slots;
    std::span<int32_t const> cu_seqlens;
    BlockGrid const& grid;

    /// Calls visit(place in the choice, block of the grid) in order of tokens; false when a rule is broken.
    template <class Visit>
    bool each(Visit visit) const {
        for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d)
            for (int64_t t = std::max<int64_t>(cu_seqlens[d], queries.begin);
                 t < std::min<int64_t>(cu_seqlens[d + 1], queries.end); ++t)
                for (int64_t h = first_head; h < last_head; ++h) {
                    int64_t const row = ((t - queries.begin) * heads + h) * slots;
                    int64_t const current = (t - cu_seqlens[d]) / grid.block_size;
                    int64_t previous = -1;
                    int64_t s = 0;
                    for (; s < slots && chosen_THS[row + s] >= 0; ++s) {
                        int64_t const block = chosen_THS[row + s];
                        if (block <= previous || block >= current) return false;
                        visit(row + s, grid.first[d] + block);
                        previous = block;
                    }
                    for (; s < slots; ++s)
                        if (chosen_THS[row + s] != -1) return false;
                }
        return true;
    }
};

}  // namespace

Routes::Routes(ConstView chosen_THS, Segment queries, int64_t kv_heads, std::span<int32_t const> cu_seqlens,
               BlockGrid const& grid)
    : heads_(chosen_THS[1]), slots_(chosen_THS[2]), blocks_(static_cast<int64_t>(grid.blocks.size())) {
    int64_t const group = heads_ / kv_heads;
    auto const choice_of = [&](int64_t g) {
        return GroupChoice{
            chosen_THS.as<int32_t>(), queries, g * group, (g + 1) * group, heads_, slots_, cu_seqlens, grid};
    };
    // A counting sort. After the counts are summed up, next[b] is where block b begins; filling moves it to the end.
    std::vector<int64_t> next(kv_heads * blocks_ + 1, 0);
    bool valid = true;
#pragma omp parallel for reduction(&& : valid)
    for (int64_t g = 0; g < kv_heads; ++g)
        valid = choice_of(g).each([&](int64_t, int64_t block) { ++next[g * blocks_ + block]; }) && valid;
    PERIGEE_CHECK(valid, "chosen blocks must ascend, lie wholly in the past, and be followed by -1 only");
    std::exclusive_scan(next.begin(), next.end(), next.begin(), int64_t{0});
    offsets_ = next;
    places_.resize(offsets_.back());
#pragma omp parallel for
    for (int64_t g = 0; g < kv_heads; ++g)
        choice_of(g).each([&](int64_t place, int64_t block) { places_[next[g * blocks_ + block]++] = place; });
}

}  // namespace perigee::host
