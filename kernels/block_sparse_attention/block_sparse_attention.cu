#include "kernels/block_sparse_attention/block_sparse_attention.h"

#include <algorithm>

#include "kernels/block_sparse_attention/query_tiles.cuh"
#include "kernels/common/built_for.h"
#include "kernels/common/launch.h"

namespace perigee {
namespace block_sparse {

Scratch scratch_of(BlockSparsePlan const& plan, void* memory, void* routing) {
    auto* const base = static_cast<unsigned char*>(memory);
    auto const at = [&]<class T>(T*& pointer, ScratchRegion const& region) {
        bool const elsewhere = routing != nullptr && region.offset >= plan.routing.offset;
        unsigned char* const address = elsewhere
                                           ? static_cast<unsigned char*>(routing) + region.offset - plan.routing.offset
                                           : base + region.offset;
        pointer = static_cast<T*>(static_cast<void*>(address));
    };
    Scratch s{};
    at(s.first, plan.first);
    at(s.blocks, plan.block_table);
    at(s.block_of, plan.block_of);
    at(s.chunk_starts, plan.chunk_starts);
    at(s.arrived, plan.arrived);
    at(s.offsets, plan.offsets);
    at(s.indices, plan.indices);
    at(s.tiles, plan.tiles);
    at(s.partial, plan.partial);
    at(s.partial_lse, plan.partial_lse);
    at(s.rows, plan.row_stats);
    at(s.max_abs, plan.max_abs);
    at(s.items, plan.items);
    at(s.sums, plan.sums);
    at(s.item_begin, plan.item_begin);
    at(s.split_begin, plan.split_begin);
    at(s.counters, plan.counters);
    return s;
}

Stage make_stage(BlockSparsePlan const& plan, BlockSparseProblem const& problem) {
    check_query_range(plan.shape, problem.query_begin);
    return {plan, problem, scratch_of(plan, problem.scratch, problem.routing)};
}

Pass pass_of(BlockSparsePlan const& plan, int64_t index) {
    int64_t const per_head = (plan.chunks + plan.pass_chunks - 1) / plan.pass_chunks;
    int64_t const head = index / per_head * plan.pass_kv_heads, chunk = index % per_head * plan.pass_chunks;
    return {head, std::min(plan.pass_kv_heads, plan.shape.kv_heads - head), chunk,
            std::min(plan.pass_chunks, plan.chunks - chunk)};
}

void build_block_table(Stage const& stage) {
    build_block_table(stage.scratch, stage.plan.shape, stage.plan.blocks, stage.problem.cu_seqlens,
                      stage.problem.stream);
}

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
    args.tokens = narrow(shape.tokens);
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

}  // namespace block_sparse

KernelArch kernel_arch() {
    return kernels::built_for() == kernels::BuiltFor::hopper ? KernelArch::sm90 : KernelArch::sm80;
}

void block_sparse_forward(BlockSparsePlan const& plan, BlockSparseProblem const& problem, bf16* o, float* lse) {
    using namespace block_sparse;
    check_task(plan, AttentionTask::forward);
    if (plan.shape.queries == 0) return;
    Stage const stage = make_stage(plan, problem);
    bool const routed = plan.shape.slots() > 0;
    build_block_table(stage);
    if (routed) build_routing(stage);
    for (int64_t i = 0; i < plan.passes(); ++i) {
        Pass const pass = pass_of(plan, i);
        if (routed) {
            count_tiles(stage, pass);
            attend_selected(stage, pass);
        }
        attend_local(stage, pass, o, lse);
    }
}

void block_sparse_backward(BlockSparsePlan const& plan, BlockSparseProblem const& problem,
                           BlockSparseGradients const& gradients) {
    using namespace block_sparse;
    check_task(plan, AttentionTask::backward);
    if (plan.shape.tokens == 0) return;
    Stage const stage = make_stage(plan, problem);
    bool const queries = plan.shape.queries > 0, routed = plan.shape.slots() > 0 && queries;
    bool const forward_left_routing = problem.routing != nullptr && queries;  // no queries: no forward ran
    if (!forward_left_routing) build_block_table(stage);
    preprocess_backward(stage, gradients);
    if (routed && !forward_left_routing) build_routing(stage);
    bool const sm90 = plan.arch == KernelArch::sm90;
    if (!sm90) dkv_sm80(stage, gradients);
    for (int64_t i = 0; i < plan.passes(); ++i) {
        Pass const pass = pass_of(plan, i);
        if (sm90) {
            schedule_work_items(stage, pass);
            attend_backward_sm90(stage, pass, gradients);
            reduce_gradients_sm90(stage, pass, gradients);
            continue;
        }
        if (routed) {
            count_tiles(stage, pass);
            dq_selected_sm80(stage, pass, gradients);
        }
        dq_local_sm80(stage, pass, gradients);
    }
}

}  // namespace perigee
