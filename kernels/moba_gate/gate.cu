// Centroids, and the choice of the gate's kernels.
#include "kernels/moba_gate/gate.h"

#include <algorithm>

#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/pool.cuh"

namespace perigee {
namespace moba_gate {
namespace {

using namespace block_sparse;
using namespace kernels;

/// One block of one key/value head.
template <int D, int kThreads>
__global__ void __launch_bounds__(kThreads) pool_kernel(GateArgs const a) {
    start_early();
    Block const block = a.blocks[blockIdx.x];
    int64_t const g = blockIdx.y;
    bool const complete = block.end - block.begin == a.block_size;
    __shared__ PoolSums<D, kThreads> sums;
    pool_block<D, kThreads>(
        complete ? a.block_size : 0, a.block_size,
        [&](int row) { return a.k + (int64_t{block.begin + row} * a.kv_heads + g) * D; },
        a.centroids + (int64_t{blockIdx.x} * a.kv_heads + g) * D, sums);
}

}  // namespace

Stage make_stage(MobaGatePlan const& plan, MobaGateProblem const& problem) {
    check_query_range(plan.shape, problem.query_begin);
    auto const at = [&](ScratchRegion const& region) {
        return static_cast<void*>(static_cast<unsigned char*>(problem.scratch) + region.offset);
    };
    return {plan,
            problem,
            {{static_cast<int32_t*>(at(plan.first)), static_cast<Block*>(at(plan.block_table)),
              static_cast<int32_t*>(at(plan.block_of))},
             static_cast<bf16*>(at(plan.centroids))}};
}

void build_block_table(Stage const& stage) {
    build_block_table(stage.scratch.table, stage.plan.shape, stage.plan.blocks, stage.problem.cu_seqlens,
                      stage.problem.stream);
}

GateArgs gate_args(Stage const& stage, int32_t* chosen) {
    BlockSparseShape const& shape = stage.plan.shape;
    MobaOptions const& options = stage.plan.options;
    auto const narrow = [](int64_t x) { return static_cast<int32_t>(x); };
    return {.q = stage.problem.q,
            .k = stage.problem.k,
            .centroids = stage.scratch.centroids,
            .chosen = chosen,
            .blocks = stage.scratch.table.blocks,
            .block_of = stage.scratch.table.block_of,
            .block_size = narrow(std::min<int64_t>(shape.block_size, int64_t{1} << 30)),
            .queries = narrow(shape.queries),
            .query_begin = narrow(stage.problem.query_begin),
            .heads = narrow(shape.heads),
            .kv_heads = narrow(shape.kv_heads),
            .group = narrow(shape.group()),
            .slots = narrow(shape.slots() - options.force_first),
            .first = narrow(options.force_first),
            .summed = narrow(options.selection == MobaSelection::per_group ? shape.group() : 1),
            .force_previous = options.force_previous};
}

void pool_centroids(Stage const& stage) {
    GateArgs const args = gate_args(stage);
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        with_pool_threads(args.block_size, [&]<int kThreads>() {
            launch({.name = "pool",
                    .grid = {stage.plan.blocks, args.kv_heads},
                    .threads = kThreads,
                    .stream = stage.problem.stream,
                    .early = true},
                   pool_kernel<D, kThreads>, args);
        });
    });
}

void select_blocks(Stage const& stage, int32_t* chosen) {
    auto const select = stage.plan.arch == KernelArch::sm90 ? select_blocks_sm90 : select_blocks_sm80;
    select(stage, chosen);
}

}  // namespace moba_gate

void moba_gate_select(MobaGatePlan const& plan, MobaGateProblem const& problem, int32_t* chosen) {
    if (plan.shape.queries == 0 || plan.slots() == 0) return;
    moba_gate::Stage const stage = moba_gate::make_stage(plan, problem);
    moba_gate::build_block_table(stage);
    moba_gate::pool_centroids(stage);
    moba_gate::select_blocks(stage, chosen);
}

}  // namespace perigee
