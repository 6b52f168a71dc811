// The backward by warp products. One kernel owns 64 keys and sums dk and dv over all rows that see them. The other owns
// query tiles: routed rows leave a dQ partial per slot, and local rows, which come last, add theirs in order of slots.
#include "kernels/block_sparse_attention/tiles_sm80.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"

namespace perigee::block_sparse {
namespace {

constexpr int kRows = 64;  // of q in a tile
constexpr int kRing = 3;   // of rows that are used, loaded, and looked up

template <int D>
struct KeyShared {
    bf16 k[kTileKeys * D];
    bf16 v[kTileKeys * D];
    bf16 q[2][kRows * D];
    bf16 d_o[2][kRows * D];
    float base[2][kRows];
    float delta[2][kRows];
    int32_t at[kRing][kRows];     ///< query * H + head, or -1
    int32_t limit[kRing][kRows];  ///< the last token a row sees; -1 for rows that are not there
};

template <int D>
struct QueryShared {
    bf16 q[kRows * D];
    bf16 d_o[kRows * D];
    bf16 k[2][kTileKeys * D];
    bf16 v[2][kTileKeys * D];
    Row rows[kRows];
};

/// Turns scores into P = exp(scale s - lse) and dP = do v^T into dS = P (dP - delta). `stats(n, i)`: base and delta of
/// the row of s[4 n + i], and whether it sees the key.
struct ScoreStats {
    float base, delta;
    bool sees;
};
template <class Stats>
__device__ __forceinline__ void score_gradients(float (&s)[32], float (&dp)[32], float scale_log2, Stats stats) {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            ScoreStats const x = stats(n, i);
            s[4 * n + i] = x.sees ? exp2_approx(s[4 * n + i] * scale_log2 - x.base) : 0;
            dp[4 * n + i] = s[4 * n + i] * (dp[4 * n + i] - x.delta);
        }
}

/// The rows that see the keys of a block from `key` on: local rows from token `local_begin` on, then routed rows.
struct BlockRows {
    int32_t head, local_begin, local_rows, rows;  ///< head: the first of the group
    uint32_t const* entries;                      ///< of routed rows

    __device__ BlockRows(AttentionArgs const& a, int64_t g, int32_t index, Block const& block, int32_t key)
        : head(static_cast<int32_t>(g) * a.group), local_begin(max(key, a.query_begin)) {
        rows = local_rows = max(min(block.end, a.query_begin + a.queries) - local_begin, 0) * a.group;
        if (a.slots == 0 || a.queries == 0) return;
        entries = a.indices + g * a.indices_stride + a.offsets[g * (a.capacity + 1) + index];
        rows += starts_of_chunk(a, g, a.chunks)[index];
    }
    /// Looks row i up.
    __device__ __forceinline__ void find(AttentionArgs const& a, int32_t i, int32_t& at, int32_t& limit) const {
        bool const local = i < local_rows, there = i < rows;
        limit = local ? local_begin + i / a.group : there ? INT_MAX : -1;
        int32_t const row = local   ? (local_begin - a.query_begin) * a.group + i
                            : there ? static_cast<int32_t>(entries[i - local_rows] >> 6)
                                    : 0;
        at = there ? row / a.group * a.heads + head + row % a.group : -1;
    }
};

/// Starts copying q, do, base and delta of the rows at `at`.
template <int D>
__device__ void load_query_rows(AttentionArgs const& a, KeyShared<D>& shared, int32_t const* at, int stage) {
    auto const row_at = [&](int i) { return at[i]; };
    load_rows<D, kRows, kThreads, Swizzled<D>>(shared.q[stage], a.q, row_at);
    load_rows<D, kRows, kThreads, Swizzled<D>>(shared.d_o[stage], a.d_o, row_at);
    int const i = threadIdx.x % kRows;
    RowStats const& row = a.rows[max(at[i], 0)];
    if (threadIdx.x < kRows)
        copy_4(&shared.base[stage][i], &row.base, at[i] >= 0);
    else
        copy_4(&shared.delta[stage][i], &row.delta, at[i] >= 0);
    end_copy_group();
}

template <int D>
__global__ void __launch_bounds__(kThreads, 2) dkv_kernel(AttentionArgs const a) {
    auto const index = static_cast<int32_t>(blockIdx.x) / a.tiles_per_block;
    Block const block = a.blocks[index];
    int32_t const key = block.begin + static_cast<int32_t>(blockIdx.x) % a.tiles_per_block * kTileKeys;
    if (key >= block.end) return;
    auto& shared = *reinterpret_cast<KeyShared<D>*>(dynamic_shared());
    int64_t const g = blockIdx.y;
    BlockRows const rows(a, g, index, block, key);
    int const thread = threadIdx.x, lane = thread % 32, warp_row = thread / 32 * 16;
    int32_t const my_key = key + warp_row + lane / 4;

    auto const look_up = [&](int step) {
        int const ring = step % kRing;
        if (thread < kRows) rows.find(a, step * kRows + thread, shared.at[ring][thread], shared.limit[ring][thread]);
    };
    load_keys<D>(a, g, key, block.end, shared.k, shared.v);
    look_up(0);
    look_up(1);
    __syncthreads();
    load_query_rows<D>(a, shared, shared.at[0], 0);

    float dk[1][D / 2] = {}, dv[1][D / 2] = {};
    for (int32_t step = 0; step * kRows < rows.rows; ++step) {
        int const stage = step % 2, ring = step % kRing;
        wait_for_copy_groups<0>();
        __syncthreads();
        if ((step + 1) * kRows < rows.rows) load_query_rows<D>(a, shared, shared.at[(step + 1) % kRing], stage ^ 1);
        look_up(step + 2);
        float p[32] = {}, ds[32] = {};  // transposed: [keys, rows]
        score<D, Swizzled<D>>(p, shared.k, warp_row, shared.q[stage]);
        score<D, Swizzled<D>>(ds, shared.v, warp_row, shared.d_o[stage]);
        bool const all_seen = step * kRows >= rows.local_rows && (step + 1) * kRows <= rows.rows;
        score_gradients(p, ds, a.scale * kLog2e, [&](int n, int i) -> ScoreStats {
            int const row = n * 8 + lane % 4 * 2 + i % 2;
            return {shared.base[stage][row], shared.delta[stage][row],
                    all_seen || my_key + i / 2 * 8 <= shared.limit[ring][row]};
        });
        weigh<D, Swizzled<D>>(dv, p, shared.d_o[stage]);
        weigh<D, Swizzled<D>>(dk, ds, shared.q[stage]);
    }
    wait_for_copy_groups<0>();  // where there was no row at all
#pragma unroll
    for (int half = 0; half < 2; ++half)
        if (my_key + half * 8 < block.end) {
            int64_t const to = (int64_t{my_key + half * 8} * a.kv_heads + g) * D;
            write_row<D>(a.dk + to, dk[0], half, a.scale, a.add_to_dkv);
            write_row<D>(a.dv + to, dv[0], half, 1, a.add_to_dkv);
        }
}

template <int D, bool kLocal>
__global__ void __launch_bounds__(kThreads, 2) dq_kernel(AttentionArgs const a) {
    Work work;
    if (!find_work<kLocal, kRows>(a, work)) return;
    auto& shared = *reinterpret_cast<QueryShared<D>*>(dynamic_shared());
    int const thread = threadIdx.x, lane = thread % 32, warp_row = thread / 32 * 16;
    if (thread < kRows) shared.rows[thread] = row_of<kLocal>(a, work, thread);
    __syncthreads();
    auto const row_at = [&](int i) { return shared.rows[i].at; };
    load_rows<D, kRows, kThreads, Swizzled<D>>(shared.q, a.q, row_at);
    load_rows<D, kRows, kThreads, Swizzled<D>>(shared.d_o, a.d_o, row_at);
    load_keys<D>(a, work.g, work.block.begin, work.key_end, shared.k[0], shared.v[0]);

    Row row[2];
    RowStats stats[2] = {{INFINITY, 0, 0}, {INFINITY, 0, 0}};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        row[half] = shared.rows[warp_row + lane / 4 + half * 8];
        if (row[half].at >= 0) stats[half] = a.rows[row[half].at];
    }
    int32_t const seen_by_all = kLocal ? work.block.begin + work.begin / a.group : work.block.end - 1;
    float dq[1][D / 2] = {};
    int stage = 0;
    for (int32_t key = work.block.begin; key < work.key_end; key += kTileKeys, stage ^= 1) {
        wait_for_copy_groups<0>();
        __syncthreads();
        if (key + kTileKeys < work.key_end)
            load_keys<D>(a, work.g, key + kTileKeys, work.key_end, shared.k[stage ^ 1], shared.v[stage ^ 1]);
        float s[32] = {}, ds[32] = {};
        score<D, Swizzled<D>>(s, shared.q, warp_row, shared.k[stage]);
        score<D, Swizzled<D>>(ds, shared.d_o, warp_row, shared.v[stage]);
        bool const all_seen = key + kTileKeys - 1 <= seen_by_all;
        score_gradients(s, ds, a.scale * kLog2e, [&](int n, int i) -> ScoreStats {
            return {stats[i / 2].base, stats[i / 2].delta,
                    all_seen || key + n * 8 + lane % 4 * 2 + i % 2 <= row[i / 2].limit};
        });
        weigh<D, Swizzled<D>>(dq, ds, shared.k[stage]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row[half].at < 0) continue;
        if constexpr (kLocal) {
#pragma unroll
            for (int n = 0; n < D / 2; n += 4) dq[0][n + 2 * half] *= a.scale, dq[0][n + 2 * half + 1] *= a.scale;
            for (int s = 0; s < a.slots; ++s)
                if (slot_used(a, work.index - work.block.first, row[half].at, s))
                    add_row<D>(dq[0], half, a.partial + (int64_t{row[half].slot} + s) * D, 1);
            write_row<D>(a.dq + int64_t{row[half].at} * D, dq[0], half, 1);
        } else {
            write_row<D>(a.partial + int64_t{row[half].slot} * D, dq[0], half, a.scale);
        }
    }
}

template <bool kLocal>
void launch_dq(Stage const& stage, AttentionArgs const& args, int64_t tiles) {
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        static_assert(sizeof(QueryShared<D>) <= kLeastShared);
        launch({.name = kLocal ? "dq_local_sm80" : "dq_selected_sm80",
                .grid = {tiles * args.pass_heads},
                .threads = kThreads,
                .shared_bytes = sizeof(QueryShared<D>),
                .stream = stage.problem.stream},
               dq_kernel<D, kLocal>, args);
    });
}

}  // namespace

void dkv_sm80(Stage const& stage, BlockSparseGradients const& gradients) {
    AttentionArgs args = attention_args(stage, {}, gradients);
    args.tiles_per_block = tiles_per_block(stage.plan, 1, kTileKeys);
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        static_assert(sizeof(KeyShared<D>) <= kLeastShared);
        launch({.name = "dkv_sm80",
                .grid = {stage.plan.blocks * args.tiles_per_block, args.kv_heads},
                .threads = kThreads,
                .shared_bytes = sizeof(KeyShared<D>),
                .stream = stage.problem.stream},
               dkv_kernel<D>, args);
    });
}

void dq_selected_sm80(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients) {
    launch_dq<false>(stage, attention_args(stage, pass, gradients), max_routed_tiles(stage.plan, pass));
}

void dq_local_sm80(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients) {
    AttentionArgs args = attention_args(stage, pass, gradients);
    args.tiles_per_block = tiles_per_block(stage.plan, stage.plan.shape.group(), kRows);
    launch_dq<true>(stage, args, stage.plan.blocks * args.tiles_per_block);
}

}  // namespace perigee::block_sparse
