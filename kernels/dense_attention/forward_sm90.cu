// The dense forward: persistent thread blocks of one producer warpgroup (TMA) and two or three consumer warpgroups of
// 64 query rows each. README.md has a picture. Two thread blocks with a query tile each of the same key/value head make
// a cluster, and one of them loads each tile of keys or values for both (TMA multicast).
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
    if constexpr (T::kCluster > 1) hopper::cluster_begin();
    start_early();
    if constexpr (T::kCluster > 1)
        hopper::cluster_begun();
    else
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
    if constexpr (T::kCluster > 1) hopper::cluster_end();
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
    auto const group = static_cast<int32_t>(p.shape.group());
    auto const forward = [&]<int D, bool kWindowed, Pairs kPairs>() {
        using T = ForwardTiling<D, kWindowed, kPairs>;
        static_assert(sizeof(ForwardShared<T>) <= 227 << 10, "more than a thread block can have");
        auto const keys = [&](bf16 const* x) {
            return hopper::rows_map(x, p.shape.tokens, p.shape.kv_heads, D, T::kKeys);
        };
        auto const heads = static_cast<int32_t>(p.shape.heads);
        constexpr int32_t kHeads = T::kCluster / T::kTilesAtOnce;  // of an item
        Tiling const tiling{T::kRows * T::kTilesAtOnce, heads / kHeads, group / kHeads, 4 * D};
        ForwardArgs const args{schedule_tiles(p, p.scratch, tiling),
                               hopper::rows_map(p.q, p.queries, p.shape.heads, D, T::kRows),
                               keys(p.k),
                               keys(p.v),
                               o,
                               lse,
                               static_cast<float>(p.scale),
                               static_cast<int32_t>(p.query_begin),
                               heads,
                               group,
                               window_of(p.shape)};
        int64_t const items = (p.queries / tiling.rows + p.shape.documents) * tiling.heads;
        int64_t const clusters = std::min(std::max<int64_t>(kernels::multiprocessors() / T::kCluster, 1), items);
        kernels::launch({.name = "dense_attention_forward",
                         .grid = {clusters * T::kCluster},
                         .threads = T::kThreads,
                         .shared_bytes = sizeof(ForwardShared<T>),
                         .stream = p.stream,
                         .early = true,
                         .cluster = T::kCluster},
                        forward_kernel<T>, args);
    };
    with_tiling(p.shape, [&]<int D, bool kWindowed>() {
        if constexpr (!kWindowed) {
            if (group % 2 == 0) return forward.template operator()<D, false, Pairs::of_heads>();
            // Tiles of a range begin anywhere. Two of them may then differ by more key tiles than the ring holds. With
            // one head in a group every pair would be uneven: README.md, rejected ideas. Heads of 64 gain nothing.
            if constexpr (D > 64)
                if (group > 1 && p.queries == p.shape.tokens)
                    return forward.template operator()<D, false, Pairs::of_heads_and_tiles>();
        }
        forward.template operator()<D, kWindowed, Pairs::none>();
    });
}

}  // namespace perigee
