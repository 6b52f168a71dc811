#include "kernels/block_sparse_attention/query_tiles.cuh"

#include <algorithm>

#include "kernels/common/launch.cuh"

namespace perigee::block_sparse {
namespace {

int32_t narrow(int64_t x) { return static_cast<int32_t>(x); }

/// The queries [begin, end) of a pass.
int64_t pass_begin(BlockSparsePlan const& plan, Pass const& pass) { return pass.chunk * plan.chunk_queries; }
int64_t pass_end(BlockSparsePlan const& plan, Pass const& pass) {
    return std::min((pass.chunk + pass.chunks) * plan.chunk_queries, plan.shape.queries);
}

}  // namespace

AttentionArgs attention_args(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients) {
    BlockSparseShape const& shape = stage.plan.shape;
    BlockSparseProblem const& p = stage.problem;
    AttentionArgs args{stage.scratch, gradients, p.q, p.k, p.v, p.chosen};
    args.indices_stride = shape.slots_per_kv_head();
    args.scale = static_cast<float>(p.scale);
    args.heads = narrow(shape.heads);
    args.kv_heads = narrow(shape.kv_heads);
    args.group = narrow(shape.group());
    args.slots = narrow(shape.slots());
    args.capacity = narrow(stage.plan.blocks);
    args.chunks = narrow(stage.plan.chunks);
    args.query_begin = narrow(p.query_begin);
    args.queries = narrow(shape.queries);
    args.head = narrow(pass.head);
    args.pass_heads = narrow(pass.heads);
    args.chunk = narrow(pass.chunk);
    args.end_chunk = narrow(pass.chunk + pass.chunks);
    args.pass_begin = narrow(pass_begin(stage.plan, pass));
    args.pass_end = narrow(pass_end(stage.plan, pass));
    args.pass_rows = narrow(stage.plan.pass_queries() * shape.group());
    args.adds_to_dq = stage.plan.adds_to_dq;
    return args;
}

int64_t max_routed_tiles(BlockSparsePlan const& plan, Pass const& pass) {
    int64_t const queries = pass_end(plan, pass) - pass_begin(plan, pass);
    int64_t const entries = queries * plan.shape.group() * plan.shape.slots();
    return std::min(entries, ceil_div(entries, plan.row_tile) + plan.blocks);
}

int32_t tiles_per_block(BlockSparsePlan const& plan, int64_t per_token, int64_t tile) {
    int64_t const longest = std::min(plan.shape.block_size, plan.shape.tokens);
    return narrow(ceil_div(longest * per_token, tile));
}

}  // namespace perigee::block_sparse
