#include "kernels/moba/cuda/rows.cuh"

#include <algorithm>

#include "kernels/moba/cuda/launch.cuh"

namespace perigee::moba {
namespace {

int32_t narrow(int64_t x) { return static_cast<int32_t>(x); }

/// The queries [begin, end) of a wave.
int64_t wave_begin(MobaPlan const& plan, Wave const& wave) { return wave.chunk * plan.chunk_queries; }
int64_t wave_end(MobaPlan const& plan, Wave const& wave) {
    return std::min((wave.chunk + wave.chunks) * plan.chunk_queries, plan.shape.queries);
}

}  // namespace

AttentionArgs attention_args(Stage const& stage, Wave const& wave) {
    MobaShape const& shape = stage.plan.shape;
    MobaProblem const& p = stage.problem;
    Scratch const& s = stage.scratch;
    AttentionArgs args{};
    args.q = p.q;
    args.k = p.k;
    args.v = p.v;
    args.chosen = p.chosen;
    args.blocks = s.blocks;
    args.places = s.places;
    args.list_begin = s.list_begin;
    args.list = s.list;
    args.tiles = s.tiles;
    args.partial = s.partial;
    args.partial_lse = s.partial_lse;
    args.rows = s.rows;
    args.list_stride = shape.places();
    args.scale = static_cast<float>(p.scale);
    args.heads = narrow(shape.heads);
    args.kv_heads = narrow(shape.kv_heads);
    args.group = narrow(shape.group());
    args.slots = narrow(shape.slots());
    args.capacity = narrow(stage.plan.blocks);
    args.chunks = narrow(stage.plan.chunks);
    args.query_begin = narrow(p.query_begin);
    args.queries = narrow(shape.queries);
    args.head = narrow(wave.head);
    args.chunk = narrow(wave.chunk);
    args.end_chunk = narrow(wave.chunk + wave.chunks);
    args.wave_begin = narrow(wave_begin(stage.plan, wave));
    args.wave_end = narrow(wave_end(stage.plan, wave));
    args.wave_rows = narrow(stage.plan.wave_queries() * shape.group());
    return args;
}

int64_t most_listed_tiles(MobaPlan const& plan, Wave const& wave) {
    int64_t const queries = wave_end(plan, wave) - wave_begin(plan, wave);
    int64_t const entries = queries * plan.shape.group() * plan.shape.slots();
    return std::min(entries, ceil_div(entries, plan.row_tile) + plan.blocks);
}

int32_t tiles_per_block(MobaPlan const& plan, int64_t per_token, int64_t tile) {
    int64_t const longest = std::min(plan.shape.options.block_size, plan.shape.tokens);
    return narrow(ceil_div(longest * per_token, tile));
}

}  // namespace perigee::moba
