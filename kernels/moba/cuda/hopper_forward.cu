// The forward on Hopper: tiles of 128 or 192 rows of q against tiles of keys, by persistent thread blocks whose warps
// have different work. One warp has the copy engine bring keys and values, the others of the first warpgroup gather
// rows, and two or three teams, a warpgroup of 64 rows each, do products and softmax. kernels/moba/README.md has a
// picture.
#include "kernels/hopper/tensor_map.h"
#include "kernels/moba/cuda/hopper_forward.h"
#include "kernels/moba/cuda/hopper_overlapped.cuh"
#include "kernels/moba/cuda/hopper_short.cuh"
#include "kernels/moba/cuda/launch.cuh"

namespace perigee::moba {
namespace {

template <class T>
constexpr int threads() {
    return 128 * (1 + T::kTeams);
}

template <class T>
__global__ void __launch_bounds__(threads<T>(), 1) hopper_forward_kernel(__grid_constant__ ForwardArgs const args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    auto& shared = hopper::dynamic_tiles<ForwardShared<T>>();
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    int const warpgroup = hopper::uniform(static_cast<int>(threadIdx.x / 128));
    if (warpgroup == 0) {
        hopper::give_registers_up<T::kShort ? 80 : 56>();
        int const warp = threadIdx.x / 32;
        if (warp < T::kTeams)
            RowGatherer<T>(args, shared, warp).run();
        else if (warp == 3)
            bring_keys(args, shared);
    } else if constexpr (T::kShort) {
        hopper::take_registers<144>();
        ShortTeam<T>(args, shared, warpgroup - 1).run();
    } else {
        hopper::take_registers<224>();
        OverlappedTeam<T>(args, shared, warpgroup - 1).run();
    }
#endif
}

template <class T>
void launch_tiling(Stage const& stage, Wave const& wave, AttentionArgs const& attention, int64_t tiles) {
    static_assert(sizeof(ForwardShared<T>) <= 227 << 10, "more than a thread block can have");
    MobaShape const& shape = stage.plan.shape;
    auto const map = [&](bf16 const* x) {
        return hopper::rows_map(x, shape.tokens, shape.kv_heads, shape.head_dim, T::kKeys);
    };
    ForwardArgs const args{attention, map(stage.problem.k), map(stage.problem.v), static_cast<int32_t>(wave.heads),
                           !T::kOwn && shape.options.block_size <= T::kKeys * T::kKeyStages};
    int64_t const blocks = std::min(kernels::multiprocessors(), tiles);
    launch({T::kOwn ? "attend_own" : "attend_chosen", blocks, 1, threads<T>(), sizeof(ForwardShared<T>),
            stage.problem.stream},
           hopper_forward_kernel<T>, args);
}

template <Part kPart>
void launch_forward(Stage const& stage, Wave const& wave, AttentionArgs const& attention, int64_t tiles) {
    if (stage.plan.shape.head_dim == 64)
        launch_tiling<ForwardTiling<64, kPart>>(stage, wave, attention, tiles);
    else
        launch_tiling<ForwardTiling<128, kPart>>(stage, wave, attention, tiles);
}

}  // namespace

void hopper_attend_chosen(Stage const& stage, Wave const& wave) {
    int64_t const tiles = most_listed_tiles(stage.plan, wave) * wave.heads;
    auto const launch = stage.plan.shape.options.block_size <= kMobaShortBlock ? launch_forward<Part::short_blocks>
                                                                               : launch_forward<Part::long_blocks>;
    launch(stage, wave, attention_args(stage, wave), tiles);
}

void hopper_attend_own(Stage const& stage, Wave const& wave, bf16* o, float* lse) {
    AttentionArgs args = attention_args(stage, wave);
    args.o_out = o;
    args.lse_out = lse;
    args.tiles_per_block = tiles_per_block(stage.plan, stage.plan.shape.group(), 2 * kTeamRows);
    launch_forward<Part::own>(stage, wave, args, stage.plan.blocks * args.tiles_per_block * wave.heads);
}

}  // namespace perigee::moba
