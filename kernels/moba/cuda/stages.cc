#include "kernels/moba/cuda/stages.h"

#include <algorithm>

#include "base/error.h"

namespace perigee::moba {

Scratch scratch_of(MobaPlan const& plan, void* memory, void* lists) {
    auto* const base = static_cast<unsigned char*>(memory);
    auto const at = [&]<class T>(T*& pointer, MobaRegion const& region) {
        bool const elsewhere = lists != nullptr && region.offset >= plan.lists.offset;
        unsigned char* const place =
            elsewhere ? static_cast<unsigned char*>(lists) + (region.offset - plan.lists.offset) : base + region.offset;
        pointer = static_cast<T*>(static_cast<void*>(place));
    };
    Scratch s{};
    at(s.first, plan.first);
    at(s.blocks, plan.block_table);
    at(s.block_of, plan.block_of);
    at(s.centroids, plan.centroids);
    at(s.places, plan.places);
    at(s.starts, plan.starts);
    at(s.totals, plan.totals);
    at(s.arrived, plan.arrived);
    at(s.list_begin, plan.list_begin);
    at(s.list, plan.list);
    at(s.tiles, plan.tiles);
    at(s.partial, plan.partial);
    at(s.partial_lse, plan.partial_lse);
    at(s.rows, plan.row_numbers);
    at(s.largest, plan.largest);
    at(s.items, plan.items);
    at(s.pieces, plan.pieces);
    at(s.carried, plan.carried);
    at(s.item_begin, plan.item_begin);
    at(s.piece_begin, plan.piece_begin);
    at(s.counters, plan.counters);
    return s;
}

Stage make_stage(MobaProblem const& problem, MobaTask task) {
    MobaPlan const plan = plan_moba(problem.shape, task, problem.scratch_limit);
    PERIGEE_CHECK(problem.query_begin >= 0 && problem.query_begin + problem.shape.queries <= problem.shape.tokens,
                  "queries from {} on of {}", problem.query_begin, to_string(problem.shape));
    return {plan, problem, scratch_of(plan, problem.scratch, problem.lists)};
}

Wave wave_of(MobaPlan const& plan, int64_t index) {
    int64_t const slabs = (plan.chunks + plan.wave_chunks - 1) / plan.wave_chunks;
    int64_t const head = index / slabs * plan.wave_kv_heads, chunk = index % slabs * plan.wave_chunks;
    return {head, std::min(plan.wave_kv_heads, plan.shape.kv_heads - head), chunk,
            std::min(plan.wave_chunks, plan.chunks - chunk)};
}

}  // namespace perigee::moba
