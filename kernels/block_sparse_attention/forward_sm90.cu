// The sm90 forward: persistent thread blocks of one producer warpgroup (TMA for keys and values, gathered copies for
// rows) and two or three consumer warpgroups of 64 query rows each. README.md has a picture.
#include "kernels/block_sparse_attention/forward_sm90_overlapped.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/hopper/tensor_map.h"

namespace perigee::block_sparse {
namespace {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) forward_sm90_kernel(__grid_constant__ ForwardArgs const args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    auto& shared = hopper::dynamic_tiles<ForwardShared<T>>();
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    int const warpgroup = hopper::uniform(static_cast<int>(threadIdx.x / 128));
    if (warpgroup == 0) {
        hopper::give_registers_up<T::kShort ? 80 : 56>();
        int const warp = threadIdx.x / 32;
        if (warp < T::kWarpgroups)
            RowGatherer<T>(args, shared, warp).run();
        else if (warp == 3)
            bring_keys(args, shared);
    } else if constexpr (T::kShort) {
        hopper::take_registers<144>();
        ShortConsumer<T>(args, shared, warpgroup - 1).run();
    } else {
        hopper::take_registers<224>();
        OverlappedConsumer<T>(args, shared, warpgroup - 1).run();
    }
#endif
}

template <Part kPart>
void launch_forward(Stage const& stage, AttentionArgs const& attention, int64_t tiles) {
    BlockSparseShape const& shape = stage.plan.shape;
    with_sm90_head_dim(shape.head_dim, [&]<int D>() {
        using T = ForwardTiling<D, kPart>;
        static_assert(sizeof(ForwardShared<T>) <= 227 << 10, "more than a thread block can have");
        auto const map = [&](bf16 const* x) { return hopper::rows_map(x, shape.tokens, shape.kv_heads, D, T::kKeys); };
        ForwardArgs const args{attention, map(attention.k), map(attention.v),
                               !T::kLocal && shape.block_size <= T::kKeys * T::kKeyStages};
        int64_t const blocks = std::min(multiprocessors(), tiles * attention.pass_heads);
        launch({.name = T::kLocal ? "attend_local" : "attend_selected",
                .grid = {blocks},
                .threads = T::kThreads,
                .shared_bytes = sizeof(ForwardShared<T>),
                .stream = stage.problem.stream},
               forward_sm90_kernel<T>, args);
    });
}

}  // namespace

void attend_selected_sm90(Stage const& stage, Pass const& pass) {
    auto const launch = stage.plan.shape.block_size <= kShortBlock ? launch_forward<Part::short_blocks>
                                                                   : launch_forward<Part::long_blocks>;
    launch(stage, attention_args(stage, pass), max_routed_tiles(stage.plan, pass));
}

void attend_local_sm90(Stage const& stage, Pass const& pass, bf16* o, float* lse) {
    AttentionArgs args = attention_args(stage, pass);
    args.o_out = o;
    args.lse_out = lse;
    args.tiles_per_block = tiles_per_block(stage.plan, stage.plan.shape.group(), 2 * kConsumerRows);
    launch_forward<Part::local>(stage, args, stage.plan.blocks * args.tiles_per_block);
}

}  // namespace perigee::block_sparse
