// Scores of past blocks by wgmma, and top-k selection. Products are in the order of the gate's gate_sm90.cu, so scores
// are bitwise equal to the gate's.
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/decode/pick.cuh"
#include "kernels/decode/score_rows.cuh"
#include "kernels/hopper/product.cuh"

namespace perigee::decode {
namespace {

using namespace kernels;
using hopper::Inner;

template <int D>
struct ScoreShared {
    unsigned char means[hopper::tile_bytes<kScoreBlocks, D>()];
};

/// 64 blocks of one sequence against all heads of a key/value head, 64 at a time.
template <int D>
__global__ void __launch_bounds__(kScoreThreads) score_kernel(ScoreArgs const a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    wait_for_previous();
    let_next_begin();  // early prefetches by the next products would steal bandwidth from this kernel
    uint32_t const means = shared_address(hopper::dynamic_tiles<ScoreShared<D>>().means);
    int32_t const s = blockIdx.z, g = blockIdx.y, length = a.cache.lengths[s], from = blockIdx.x * kScoreBlocks;
    int32_t const current = length < 0 ? 0 : length / a.cache.block_size;
    if (from >= max(current, 1)) return;
    Pages const pages(a.cache, s);
    constexpr int kVectors = D / 8;
    for (int i = threadIdx.x; i < kScoreBlocks * kVectors; i += kScoreThreads) {
        int const row = i / kVectors, vector = i % kVectors;
        bool const there = from + row < current;
        bf16 const* const mean = a.cache.means + (there ? pages.mean_row(from + row, g) : 0) * D;
        hopper::copy_vector(means + hopper::swizzled_offset<kScoreBlocks>(row, vector), mean + vector * 8, there);
    }
    finish_copies();
    hopper::fence_shared_for_async();
    __syncthreads();
    int64_t const head = int64_t{s} * a.heads + int64_t{g} * a.group;
    int const warp_row = threadIdx.x / 32 * 16;
    for (int tile = 0; tile < a.group; tile += 64) {
        uint32_t q[D / 16][4];
        load_heads<D>(q, a.q + head * D, tile + warp_row, a.group);
        float scores[32];
        hopper::add_products<Inner::columns>(
            scores, q, [&](int step) { return hopper::columns_factor<kScoreBlocks>(means, 0, step); }, false);
        hopper::products_wait<0>();
        hopper::pin(scores);
        write_scores(a, scores, head, tile + warp_row, a.group, from, current);
    }
    pick_if_last(a, head, current);
#endif
}

}  // namespace

void score_sm90(ScoreArgs const& args, cudaStream_t stream) {
    with_sm90_head_dim(args.cache.head_dim, [&]<int D>() {
        launch({"decode_scores", ceil_div(args.cache.most_blocks(), kScoreBlocks), args.cache.kv_heads, kScoreThreads,
                sizeof(ScoreShared<D>), stream, args.cache.sequences, true},
               score_kernel<D>, args);
    });
}

}  // namespace perigee::decode
