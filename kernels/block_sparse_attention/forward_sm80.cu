// The forward by warp products: FlashAttention's online softmax (Dao, arXiv 2307.08691) of query tiles over one block's
// keys. Routed rows leave a normalised partial per slot; the local block's kernel runs last and merges them.
#include "kernels/block_sparse_attention/tiles_sm80.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"

namespace perigee::block_sparse {
namespace {

constexpr int kStrips = 2;               // of 16 rows per warp
constexpr int kRows = 4 * 16 * kStrips;  // of a tile

template <int D>
struct ForwardShared {
    bf16 q[kRows * tile_stride<D>()];
    bf16 k[2][kTileKeys * tile_stride<D>()];
    bf16 v[2][kTileKeys * tile_stride<D>()];
    Row rows[kRows];
};

/// Scaled scores are s * scale; the exponentials use base 2.
template <int D>
struct SoftmaxState {
    float o[kStrips][D / 8][4] = {};
    float top[kStrips][2];
    float sum[kStrips][2] = {};

    __device__ SoftmaxState() {
        for (int m = 0; m < kStrips; ++m) top[m][0] = top[m][1] = -INFINITY;
    }

    /// Turns scores into weights relative to the new maximum, and rescales what was summed under the old one.
    __device__ void absorb(float (&s)[8][4], int m, float scale_log2) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = top[m][half];
#pragma unroll
            for (int n = 0; n < 8; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            most = quad_max(most);
            float const base = finite_base(most), shift = base * scale_log2;
            float const rescale = exp2_approx((top[m][half] - base) * scale_log2);
            top[m][half] = most;
            sum[m][half] *= rescale;
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    s[n][i] = exp2_approx(s[n][i] * scale_log2 - shift);
                    sum[m][half] += s[n][i];
                }
#pragma unroll
            for (int n = 0; n < D / 8; ++n) o[m][n][2 * half] *= rescale, o[m][n][2 * half + 1] *= rescale;
        }
    }
};

/// Merges one row's o and lse with its partials: lse' = log sum exp(lse_j), o' = sum exp(lse_j - lse') o_j.
template <int D>
__device__ void merge(AttentionArgs const& a, Row const& row, int32_t local_relative, int half, float (&o)[D / 8][4],
                      float& lse) {
    float most = lse;
    for (int s = 0; s < a.slots; ++s)
        if (slot_used(a, local_relative, row.at, s)) most = fmaxf(most, a.partial_lse[row.slot + s]);
    float const base = finite_base(most);
    float weight = exp2_approx((lse - base) * kLog2e), sum = weight;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) o[n][2 * half] *= weight, o[n][2 * half + 1] *= weight;
    for (int s = 0; s < a.slots; ++s) {
        if (!slot_used(a, local_relative, row.at, s)) continue;
        weight = exp2_approx((a.partial_lse[row.slot + s] - base) * kLog2e);
        sum += weight;
        add_row<D>(o, half, a.partial + (int64_t{row.slot} + s) * D, weight);
    }
    float const inverse = inverse_of_sum(sum);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) o[n][2 * half] *= inverse, o[n][2 * half + 1] *= inverse;
    lse = most + logf(sum);
}

/// Scores of keys that a row does not see become -infinity. `rows`: from the lane's first; `key`: the lane's first.
__device__ __forceinline__ void mask_scores(float (&s)[kStrips][8][4], Row const* rows, int32_t key) {
#pragma unroll
    for (int m = 0; m < kStrips; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int32_t const limit = rows[m * 16 + half * 8].limit;
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (key + n * 8 + i > limit) s[m][n][2 * half + i] = -INFINITY;
        }
}

template <int D, bool kLocal>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(AttentionArgs const a) {
    Work work;
    if (!find_work<kLocal, kRows>(a, work)) return;
    auto& shared = *reinterpret_cast<ForwardShared<D>*>(dynamic_shared());
    int const thread = threadIdx.x, lane = thread % 32, warp_row = thread / 32 * 16 * kStrips;
    if (thread < kRows) shared.rows[thread] = row_of<kLocal>(a, work, thread);
    __syncthreads();
    gather_rows<D, kRows>(shared.q, a.q, [&](int i) { return shared.rows[i].at; });
    load_keys<D>(a, work.g, work.block.begin, work.key_end, shared.k[0], shared.v[0]);

    // Keys up to here are seen by all rows.
    int32_t const seen_by_all = kLocal ? work.block.begin + work.begin / a.group : work.block.end - 1;
    float const scale_log2 = a.scale * kLog2e;
    SoftmaxState<D> state;
    int stage = 0;
    for (int32_t key = work.block.begin; key < work.key_end; key += kTileKeys, stage ^= 1) {
        wait_for_copy_groups<0>();
        __syncthreads();
        if (key + kTileKeys < work.key_end)
            load_keys<D>(a, work.g, key + kTileKeys, work.key_end, shared.k[stage ^ 1], shared.v[stage ^ 1]);
        float s[kStrips][8][4] = {};
#pragma unroll
        for (int step = 0; step < D / 16; ++step) {
            uint32_t rows[kStrips][4];
#pragma unroll
            for (int m = 0; m < kStrips; ++m) load_left<D>(rows[m], shared.q, warp_row + m * 16, step);
            multiply_rows<D, kStrips>(s, rows, shared.k[stage], step);
        }
        if (key + kTileKeys - 1 > seen_by_all) mask_scores(s, &shared.rows[warp_row + lane / 4], key + lane % 4 * 2);
#pragma unroll
        for (int m = 0; m < kStrips; ++m) state.absorb(s[m], m, scale_log2);
#pragma unroll
        for (int step = 0; step < kTileKeys / 16; ++step) {
            uint32_t weights[kStrips][4];
#pragma unroll
            for (int m = 0; m < kStrips; ++m) to_left(weights[m], s[m], step);
            accumulate<D, kStrips>(state.o, weights, shared.v[stage], step);
        }
    }

#pragma unroll
    for (int m = 0; m < kStrips; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Row const row = shared.rows[warp_row + m * 16 + lane / 4 + half * 8];
            float const sum = quad_sum(state.sum[m][half]), inverse = inverse_of_sum(sum);
            float lse = state.top[m][half] * a.scale + logf(sum);
            if (row.at < 0) continue;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) state.o[m][n][2 * half] *= inverse, state.o[m][n][2 * half + 1] *= inverse;
            if constexpr (kLocal)
                if (a.slots > 0) merge<D>(a, row, work.index - work.block.first, half, state.o[m], lse);
            write_row<D>(kLocal ? a.o_out + int64_t{row.at} * D : a.partial + int64_t{row.slot} * D, state.o[m], half,
                         1);
            if (lane % 4 == 0) (kLocal ? a.lse_out[row.at] : a.partial_lse[row.slot]) = lse;
        }
}

template <bool kLocal>
void launch_forward(Stage const& stage, AttentionArgs const& args, int64_t tiles) {
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        launch({kLocal ? "attend_local" : "attend_selected", tiles * args.pass_heads, 1, kThreads,
                sizeof(ForwardShared<D>), stage.problem.stream},
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
