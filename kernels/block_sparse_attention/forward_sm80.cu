// The forward by warp products: FlashAttention's online softmax (Dao, arXiv 2307.08691) of query tiles over one block's
// keys. Routed rows leave a normalised partial per slot; the local block's kernel runs last and merges them.
#include "kernels/block_sparse_attention/tiles_sm80.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/softmax.cuh"

namespace perigee::block_sparse {
namespace {

constexpr int kStrips = 2;               // of 16 rows per warp
constexpr int kRows = 4 * 16 * kStrips;  // of a tile

template <int D>
struct ForwardShared {
    bf16 q[kRows * D];
    bf16 k[2][kTileKeys * D];
    bf16 v[2][kTileKeys * D];
    Row rows[kRows];
};

/// Merges one row's o, times `inverse`, and lse with its partials: lse' = log sum exp(lse_j), o' = sum exp(lse_j -
/// lse') o_j. The result is again o times `inverse`.
template <int D>
__device__ void merge(AttentionArgs const& a, Row const& row, int32_t local_relative, int half, float (&o)[D / 2],
                      float& inverse, float& lse) {
    float most = lse;
    for (int s = 0; s < a.slots; ++s)
        if (slot_used(a, local_relative, row.at, s)) most = fmaxf(most, a.partial_lse[row.slot + s]);
    float const base = finite_base(most);
    float sum = exp2_approx((lse - base) * kLog2e);
#pragma unroll
    for (int n = 2 * half; n < D / 2; n += 4) o[n] *= sum * inverse, o[n + 1] *= sum * inverse;
    for (int s = 0; s < a.slots; ++s) {
        if (!slot_used(a, local_relative, row.at, s)) continue;
        float const weight = exp2_approx((a.partial_lse[row.slot + s] - base) * kLog2e);
        sum += weight;
        add_row<D>(o, half, a.partial + (int64_t{row.slot} + s) * D, weight);
    }
    inverse = inverse_of_sum(sum);
    lse = most + logf(sum);
}

template <int D, bool kLocal>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(AttentionArgs const a) {
    Work work;
    if (!find_work<kLocal, kRows>(a, work)) return;
    auto& shared = *reinterpret_cast<ForwardShared<D>*>(dynamic_shared());
    int const thread = threadIdx.x, lane = thread % 32, warp_row = thread / 32 * 16 * kStrips;
    if (thread < kRows) shared.rows[thread] = row_of<kLocal>(a, work, thread);
    __syncthreads();
    load_rows<D, kRows, kThreads, Swizzled<D>>(shared.q, a.q, [&](int i) { return shared.rows[i].at; });
    load_keys<D>(a, work.g, work.block.begin, work.key_end, shared.k[0], shared.v[0]);

    // Keys up to here are seen by all rows.
    int32_t const seen_by_all = kLocal ? work.block.begin + work.begin / a.group : work.block.end - 1;
    Softmax<kTileKeys> softmax[kStrips];
    float o[kStrips][D / 2] = {};
    int stage = 0;
    for (int32_t key = work.block.begin; key < work.key_end; key += kTileKeys, stage ^= 1) {
        wait_for_copy_groups<0>();
        __syncthreads();
        if (key + kTileKeys < work.key_end)
            load_keys<D>(a, work.g, key + kTileKeys, work.key_end, shared.k[stage ^ 1], shared.v[stage ^ 1]);
        float s[kStrips][32] = {};
#pragma unroll
        for (int step = 0; step < D / 16; ++step) {
            uint32_t rows[kStrips][4];
#pragma unroll
            for (int m = 0; m < kStrips; ++m) load_left<D, Swizzled<D>>(rows[m], shared.q, warp_row + m * 16, step);
            multiply_rows<D, kStrips, Swizzled<D>>(s, rows, shared.k[stage], step);
        }
#pragma unroll
        for (int m = 0; m < kStrips; ++m) {
            Row const* const rows = &shared.rows[warp_row + m * 16 + lane / 4];
            if (key + kTileKeys - 1 > seen_by_all) mask_scores(s[m], {rows[0].limit, rows[8].limit}, key);
            Rescale rescale;
            softmax[m].absorb(s[m], a.scale * kLog2e, rescale, key == work.block.begin);
            rescale.apply(o[m]);
        }
#pragma unroll
        for (int step = 0; step < kTileKeys / 16; ++step) {
            uint32_t weights[kStrips][4];
#pragma unroll
            for (int m = 0; m < kStrips; ++m) to_left(weights[m], s[m], step);
            accumulate<D, kStrips, Swizzled<D>>(o, weights, shared.v[stage], step);
        }
    }

#pragma unroll
    for (int m = 0; m < kStrips; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Row const row = shared.rows[warp_row + m * 16 + lane / 4 + half * 8];
            float const sum = quad_sum(softmax[m].sum[half]);
            float inverse = inverse_of_sum(sum), lse = softmax[m].top[half] * a.scale + logf(sum);
            if (row.at < 0) continue;
            if constexpr (kLocal) merge<D>(a, row, work.index - work.block.first, half, o[m], inverse, lse);
            write_row<D>(kLocal ? a.o_out + int64_t{row.at} * D : a.partial + int64_t{row.slot} * D, o[m], half,
                         inverse);
            if (lane % 4 == 0) (kLocal ? a.lse_out[row.at] : a.partial_lse[row.slot]) = lse;
        }
}

template <bool kLocal>
void launch_forward(Stage const& stage, AttentionArgs const& args, int64_t tiles) {
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        static_assert(sizeof(ForwardShared<D>) <= kLeastShared);
        launch({.name = kLocal ? "attend_local" : "attend_selected",
                .grid = {tiles * args.pass_heads},
                .threads = kThreads,
                .shared_bytes = sizeof(ForwardShared<D>),
                .stream = stage.problem.stream},
               forward_kernel<D, kLocal>, args);
    });
}

}  // namespace

void attend_selected(Stage const& stage, Pass const& pass) {
    if (stage.plan.arch == KernelArch::sm90) return attend_selected_sm90(stage, pass);
    launch_forward<false>(stage, attention_args(stage, pass), max_routed_tiles(stage.plan, pass));
}

void attend_local(Stage const& stage, Pass const& pass, bf16* o, float* lse) {
    if (stage.plan.arch == KernelArch::sm90) return attend_local_sm90(stage, pass, o, lse);
    AttentionArgs args = attention_args(stage, pass);
    args.o_out = o;
    args.lse_out = lse;
    args.tiles_per_block = tiles_per_block(stage.plan, stage.plan.shape.group(), kRows);
    launch_forward<true>(stage, args, stage.plan.blocks * args.tiles_per_block);
}

}  // namespace perigee::block_sparse
