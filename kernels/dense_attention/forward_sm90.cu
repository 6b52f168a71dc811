// The dense forward: persistent thread blocks of one producer warpgroup (TMA) and two or three consumer warpgroups of
// 64 query rows each. README.md has a picture.
#include "kernels/common/built_for.h"
#include "kernels/common/launch.cuh"
#include "kernels/dense_attention/forward_sm90_consumer.cuh"
#include "kernels/hopper/tensor_map.h"

namespace perigee::dense {
namespace {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) forward_kernel(__grid_constant__ ForwardArgs const args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    auto& shared = hopper::dynamic_tiles<ForwardShared<T>>();
    if (threadIdx.x == 0) init_barriers(shared);
    start_early();
    __syncthreads();
    int const warpgroup = hopper::uniform(static_cast<int>(threadIdx.x / 128));
    if (warpgroup == 0) {
        hopper::give_registers_up<T::kProducerRegisters>();
        int const warp = threadIdx.x / 32;
        if (warp == 0)
            bring_tiles(args, shared);
        else if (warp == 1)
            clear_values(args, shared);
    } else {
        hopper::take_registers<T::kConsumerRegisters>();
        Consumer<T>(args, shared, warpgroup - 1).run();
    }
#endif
}

}  // namespace
}  // namespace perigee::dense

namespace perigee {

bool has_dense_attention(int64_t head_dim) {
    return kernels::built_for() >= kernels::BuiltFor::hopper && (head_dim == 64 || head_dim == 96 || head_dim == 128);
}

void dense_attention_forward(DenseAttentionProblem const& p, bf16* o, float* lse) {
    using namespace dense;
    with_tiling(p.shape, [&]<int D, bool kWindowed>() {
        using T = ForwardTiling<D, kWindowed>;
        static_assert(sizeof(ForwardShared<T>) <= 227 << 10, "more than a thread block can have");
        auto const keys = [&](bf16 const* x) {
            return hopper::rows_map(x, p.shape.tokens, p.shape.kv_heads, D, T::kKeys);
        };
        auto const group = static_cast<int32_t>(p.shape.heads / p.shape.kv_heads);
        Tiling const tiling{T::kRows, static_cast<int32_t>(p.shape.heads), group, 4 * D};
        ForwardArgs const args{schedule_tiles(p, p.scratch, tiling),
                               hopper::rows_map(p.q, p.queries, p.shape.heads, D, T::kRows),
                               keys(p.k),
                               keys(p.v),
                               o,
                               lse,
                               static_cast<float>(p.scale),
                               static_cast<int32_t>(p.query_begin),
                               group,
                               window_of(p.shape)};
        int64_t const tiles = (p.queries / T::kRows + p.shape.documents) * p.shape.heads;
        kernels::launch({"dense_attention_forward", std::min(kernels::multiprocessors(), tiles), 1, T::kThreads,
                         sizeof(ForwardShared<T>), p.stream, 1, true},
                        forward_kernel<T>, args);
    });
}

}  // namespace perigee
