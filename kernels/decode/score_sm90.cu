// Scores of past blocks by wgmma, and top-k selection. Products are in the order of the gate's gate_sm90.cu, so scores
// are bitwise equal to the gate's.
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/decode/pick.cuh"
#include "kernels/decode/score_rows.cuh"
#include "kernels/hopper/product.cuh"
#include "kernels/moba_gate/sum_of_heads.cuh"

namespace perigee::decode {
namespace {

using namespace kernels;
using hopper::Inner;

template <int D>
struct ScoreShared {
    unsigned char means[hopper::tile_bytes<kScoreBlocks, D>()];
};

/// 64 blocks of one sequence against all heads of a key/value head, 64 at a time, or against their sum.
template <int D, bool kSummed>
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
    bf16 const* const q = a.q + head * D;
    int const warp_row = threadIdx.x / 32 * 16;
    constexpr int kSteps = D / 16;
    auto const score = [&](auto const& rows, int first, int end) {
        float scores[32];
        hopper::add_products<Inner::columns>(
            scores, rows, [&](int step) { return hopper::columns_factor<kScoreBlocks>(means, 0, step % kSteps); },
            false);
        hopper::products_wait<0>();
        hopper::pin(scores);
        write_scores(a, scores, head, first, end, from, current);
    };
    uint32_t x[kSteps][4];
    if constexpr (kSummed) {
        moba_gate::SumOfHeads<kSteps> sum;
        for (int h = 0; h < a.group; ++h) {
            load_heads<D>(x, q + h * D, warp_row, 1);
            sum.add(x);
        }
        uint32_t factors[2 * kSteps][4];
        sum.split(factors);
        score(factors, warp_row, 1);
    } else {
        for (int tile = 0; tile < a.group; tile += 64) {
            load_heads<D>(x, q, tile + warp_row, a.group);
            score(x, tile + warp_row, a.group);
        }
    }
    pick_if_last(a, head, current);
#endif
}

}  // namespace

void score_sm90(ScoreArgs const& args, cudaStream_t stream) {
    with_sm90_head_dim(args.cache.head_dim, [&]<int D>() {
        launch({.name = "decode_scores",
                .grid = {ceil_div(args.cache.most_blocks(), kScoreBlocks), args.cache.kv_heads, args.cache.sequences},
                .threads = kScoreThreads,
                .shared_bytes = sizeof(ScoreShared<D>),
                .stream = stream,
                .early = true},
               args.summed > 1 ? score_kernel<D, true> : score_kernel<D, false>, args);
    });
}

}  // namespace perigee::decode
