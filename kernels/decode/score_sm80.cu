// Scores of past blocks by mma.sync, and top-k selection. Products are in the order of the gate's gate_sm80.cu, so
// scores are bitwise equal to the gate's.
#include "kernels/ampere/tile.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/decode/pick.cuh"
#include "kernels/decode/score_rows.cuh"

namespace perigee::decode {
namespace {

using namespace ampere;

/// 64 blocks of one sequence against all heads of a key/value head, 64 at a time, or against their sum.
template <int D>
__global__ void __launch_bounds__(kScoreThreads) score_kernel(ScoreArgs const a) {
    wait_for_previous();
    let_next_begin();  // early prefetches by the next products would steal bandwidth from this kernel
    auto* const means = reinterpret_cast<bf16*>(dynamic_shared());
    int32_t const s = blockIdx.z, g = blockIdx.y, length = a.cache.lengths[s], from = blockIdx.x * kScoreBlocks;
    int32_t const current = length < 0 ? 0 : length / a.cache.block_size;
    if (from >= max(current, 1)) return;
    Pages const pages(a.cache, s);
    load_rows<D, kScoreBlocks, kScoreThreads>(
        means, a.cache.means, [&](int i) { return from + i < current ? pages.mean_row(from + i, g) : int64_t{-1}; });
    end_copy_group();
    wait_for_copy_groups<0>();
    __syncthreads();
    int64_t const head = int64_t{s} * a.heads + int64_t{g} * a.group;
    bf16 const* const q = a.q + head * D;
    int const warp = threadIdx.x / 32, rows = a.summed > 1 ? 1 : a.group;
    for (int first = warp * 16; first < rows; first += kScoreThreads / 32 * 16) {
        float scores[32] = {};
        for (int h = 0; h < a.summed; ++h) {
            uint32_t x[D / 16][4];
            load_heads<D>(x, q + h * D, first, rows);
#pragma unroll
            for (int step = 0; step < D / 16; ++step) multiply_rows<D>(scores, x[step], means, step);
        }
        write_scores(a, scores, head, first, rows, from, current);
    }
    pick_if_last(a, head, current);
}

}  // namespace

void score_sm80(ScoreArgs const& args, cudaStream_t stream) {
    with_head_dim(args.cache.head_dim, [&]<int D>() {
        launch({.name = "decode_scores",
                .grid = {ceil_div(args.cache.most_blocks(), kScoreBlocks), args.cache.kv_heads, args.cache.sequences},
                .threads = kScoreThreads,
                .shared_bytes = tile_bytes<D>(kScoreBlocks),
                .stream = stream,
                .early = true},
               score_kernel<D>, args);
    });
}

}  // namespace perigee::decode
