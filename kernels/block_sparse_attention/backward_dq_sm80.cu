// dq by warp products: query tiles against one block's keys. Routed rows leave a dQ partial per slot; the local block's
// kernel runs last and adds them in the order of the slots.
#include "kernels/block_sparse_attention/tiles_sm80.cuh"
#include "kernels/common/launch.cuh"

namespace perigee::block_sparse {
namespace {

constexpr int kRows = 64;

template <int D>
struct QueryShared {
    bf16 q[kRows * tile_stride<D>()];
    bf16 d_o[kRows * tile_stride<D>()];
    bf16 k[2][kTileKeys * tile_stride<D>()];
    bf16 v[2][kTileKeys * tile_stride<D>()];
    Row rows[kRows];
};

template <int D, bool kLocal>
__global__ void __launch_bounds__(kAttentionThreads, 2) dq_kernel(AttentionArgs const a) {
    Work work;
    if (!find_work<kLocal, kRows>(a, work)) return;
    auto& shared = *reinterpret_cast<QueryShared<D>*>(dynamic_shared());
    int const thread = threadIdx.x, lane = thread % 32, warp_row = thread / 32 * 16;
    if (thread < kRows) shared.rows[thread] = row_of<kLocal>(a, work, thread);
    __syncthreads();
    auto const rows_of = [&](bf16 const* x) {
        return [&, x](int row, bool& there) {
            int32_t const at = shared.rows[row].at;
            there = at >= 0;
            return x + int64_t{there ? at : 0} * D;
        };
    };
    load_rows<D, kRows, kAttentionThreads>(shared.q, rows_of(a.q));
    load_rows<D, kRows, kAttentionThreads>(shared.d_o, rows_of(a.d_o));
    load_keys<D>(a, work, work.block.begin, shared.k[0], shared.v[0]);

    Row row[2];
    float base[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        row[half] = shared.rows[warp_row + lane / 4 + half * 8];
        bool const there = row[half].at >= 0;
        base[half] = there ? a.rows[row[half].at].base : INFINITY;
        delta[half] = there ? a.rows[row[half].at].delta : 0.0f;
    }
    int32_t const seen_by_all = kLocal ? work.block.begin + work.begin / a.group : work.block.end - 1;
    float const scale_log2 = a.scale * kLog2e;
    float dq[1][D / 8][4] = {};
    int stage = 0;
    for (int32_t key = work.block.begin; key < work.key_end; key += kTileKeys, stage ^= 1) {
        wait_for_copy_groups<0>();
        __syncthreads();
        if (key + kTileKeys < work.key_end)
            load_keys<D>(a, work, key + kTileKeys, shared.k[stage ^ 1], shared.v[stage ^ 1]);
        float s[8][4] = {}, dp[8][4] = {};
        score<D>(s, shared.q, warp_row, shared.k[stage]);
        score<D>(dp, shared.d_o, warp_row, shared.v[stage]);
        bool const all_seen = key + kTileKeys - 1 <= seen_by_all;
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float p = exp2_approx(s[n][i] * scale_log2 - base[i / 2]);
                if (!all_seen && key + n * 8 + lane % 4 * 2 + i % 2 > row[i / 2].limit) p = 0;
                s[n][i] = p * (dp[n][i] - delta[i / 2]);
            }
        weigh<D>(dq, s, shared.k[stage]);
    }

#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) dq[0][n][i] *= a.scale;
    if constexpr (kLocal) {
        int32_t const local_relative = static_cast<int32_t>(blockIdx.x) / a.tiles_per_block - work.block.first;
#pragma unroll
        for (int half = 0; half < 2; ++half)
            for (int s = 0; s < a.slots && row[half].at >= 0; ++s) {
                if (!slot_used(a, local_relative, row[half].at, s)) continue;
                auto const* const part =
                    reinterpret_cast<uint32_t const*>(a.partial + (int64_t{row[half].slot} + s) * D) + lane % 4;
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
                    uint32_t const x = part[n * 4];
                    dq[0][n][2 * half] += low(x);
                    dq[0][n][2 * half + 1] += high(x);
                }
            }
    }
    __syncwarp();  // the warp is done with its rows of q: results overwrite them
    store_result<D>(shared.q, warp_row, dq[0], 1.0f);
    __syncwarp();
    write_rows<D>(shared.q, warp_row, [&](int r) -> bf16* {
        Row const to = shared.rows[r];
        if (to.at < 0) return nullptr;
        return kLocal ? a.dq + int64_t{to.at} * D : a.partial + int64_t{to.slot} * D;
    });
}

}  // namespace

void dq_selected_sm80(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients) {
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        launch({"dq_selected_sm80", max_routed_tiles(stage.plan, pass), pass.heads, kAttentionThreads,
                sizeof(QueryShared<D>), stage.problem.stream},
               dq_kernel<D, false>, attention_args(stage, pass, gradients));
    });
}

void dq_local_sm80(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients) {
    AttentionArgs args = attention_args(stage, pass, gradients);
    args.tiles_per_block = tiles_per_block(stage.plan, stage.plan.shape.group(), kRows);
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        launch({"dq_local_sm80", stage.plan.blocks * args.tiles_per_block, pass.heads, kAttentionThreads,
                sizeof(QueryShared<D>), stage.problem.stream},
               dq_kernel<D, true>, args);
    });
}

}  // namespace perigee::block_sparse
