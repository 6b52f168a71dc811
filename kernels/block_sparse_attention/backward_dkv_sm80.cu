// dk and dv by warp products: a thread block owns 64 keys and sums over all rows that see them, local, then routed.
#include "kernels/block_sparse_attention/tiles_sm80.cuh"
#include "kernels/common/launch.cuh"

namespace perigee::block_sparse {
namespace {

constexpr int kRows = 64;  // of q in a step
constexpr int kRing = 3;   // whose rows are used, loaded, and looked up

template <int D>
struct KeyShared {
    bf16 k[kTileKeys * tile_stride<D>()];
    bf16 v[kTileKeys * tile_stride<D>()];
    bf16 q[2][kRows * tile_stride<D>()];
    bf16 d_o[2][kRows * tile_stride<D>()];
    float base[2][kRows];
    float delta[2][kRows];
    int32_t at[kRing][kRows];     ///< query * H + head, or -1
    int32_t limit[kRing][kRows];  ///< the last token a row sees; -1 for rows that are not there
};

/// The rows that see the keys from `key` on: local rows from token `local_begin` on, then routed rows.
struct BlockRows {
    int64_t g;
    int32_t local_begin, local_rows, offsets, rows;
};

__device__ BlockRows find_block_rows(AttentionArgs const& a, int32_t index, Block const& block, int32_t key) {
    BlockRows x{};
    x.g = blockIdx.y;
    x.local_begin = max(key, a.query_begin);
    int32_t const local_end = min(block.end, a.query_begin + a.queries);
    x.local_rows = max(local_end - x.local_begin, 0) * a.group;
    x.rows = x.local_rows;
    if (a.slots > 0 && a.queries > 0) {
        x.offsets = a.offsets[x.g * (a.capacity + 1) + index];
        x.rows += a.chunk_ends[(x.g * a.capacity + index) * a.chunks + a.chunks - 1];
    }
    return x;
}

/// Row i: its index in q, and the last token it sees.
struct QueryRow {
    int32_t at = -1;
    int32_t limit = -1;
};
__device__ __forceinline__ QueryRow query_row(AttentionArgs const& a, BlockRows const& x, int32_t i) {
    QueryRow row;
    auto const head = static_cast<int32_t>(x.g) * a.group;
    if (i < x.local_rows) {
        row.limit = x.local_begin + i / a.group;
        row.at = (row.limit - a.query_begin) * a.heads + head + i % a.group;
    } else if (i < x.rows) {
        uint32_t const entry = a.indices[x.g * a.indices_stride + x.offsets + (i - x.local_rows)];
        auto const at = static_cast<int32_t>(entry >> 6);
        row.limit = INT_MAX;
        row.at = at / a.group * a.heads + head + at % a.group;
    }
    return row;
}

/// Starts copying q, do, base and delta of a step whose rows are known.
template <int D>
__device__ void load_query_rows(AttentionArgs const& a, KeyShared<D>& shared, int ring, int stage) {
    auto const rows_of = [&](bf16 const* x) {
        return [&, x, ring](int row, bool& there) {
            int32_t const at = shared.at[ring][row];
            there = at >= 0;
            return x + int64_t{there ? at : 0} * D;
        };
    };
    load_rows<D, kRows, kAttentionThreads>(shared.q[stage], rows_of(a.q));
    load_rows<D, kRows, kAttentionThreads>(shared.d_o[stage], rows_of(a.d_o));
    int const row = threadIdx.x % kRows;
    int32_t const at = shared.at[ring][row];
    if (threadIdx.x < kRows)
        copy_4(&shared.base[stage][row], &a.rows[at >= 0 ? at : 0].base, at >= 0);
    else
        copy_4(&shared.delta[stage][row], &a.rows[at >= 0 ? at : 0].delta, at >= 0);
    end_copy_group();
}

/// Rounds a [16, D] gradient of keys into the warp's rows of `tile` and writes or adds it.
template <int D>
__device__ void write_dkv(AttentionArgs const& a, float const (&x)[D / 8][4], float factor, bf16* tile, int row,
                          bf16* to, int32_t key, int32_t key_end, int64_t g) {
    int const lane = threadIdx.x % 32;
    auto const row_at = [&](int r) -> bf16* {
        return key + r < key_end ? to + (int64_t{key + r} * a.kv_heads + g) * D : nullptr;
    };
    if (a.add_to_dkv) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            auto* const old = reinterpret_cast<uint32_t*>(row_at(row + lane / 4 + half * 8));
            if (old == nullptr) continue;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                uint32_t& sum = old[n * 4 + lane % 4];
                sum = pack(low(sum) + x[n][2 * half] * factor, high(sum) + x[n][2 * half + 1] * factor);
            }
        }
        return;
    }
    store_result<D>(tile, row, x, factor);
    __syncwarp();
    write_rows<D>(tile, row, row_at);
}

template <int D>
__global__ void __launch_bounds__(kAttentionThreads, 2) dkv_kernel(AttentionArgs const a) {
    auto const index = static_cast<int32_t>(blockIdx.x) / a.tiles_per_block;
    Block const block = a.blocks[index];
    int32_t const key = block.begin + static_cast<int32_t>(blockIdx.x) % a.tiles_per_block * kTileKeys;
    if (key >= block.end) return;
    auto& shared = *reinterpret_cast<KeyShared<D>*>(dynamic_shared());
    BlockRows const query_rows = find_block_rows(a, index, block, key);
    int const thread = threadIdx.x, lane = thread % 32, warp_row = thread / 32 * 16;

    auto const look_up = [&](int32_t first, int ring) {
        if (thread >= kRows) return;
        QueryRow const row = query_row(a, query_rows, first + thread);
        shared.at[ring][thread] = row.at;
        shared.limit[ring][thread] = row.limit;
    };
    auto const keys_of = [&](bf16 const* x) {
        return [&, x](int row, bool& there) {
            there = key + row < block.end;
            return x + (int64_t{there ? key + row : key} * a.kv_heads + query_rows.g) * D;
        };
    };
    load_rows<D, kTileKeys, kAttentionThreads>(shared.k, keys_of(a.k));
    load_rows<D, kTileKeys, kAttentionThreads>(shared.v, keys_of(a.v));
    look_up(0, 0);
    look_up(kRows, 1);
    __syncthreads();
    load_query_rows<D>(a, shared, 0, 0);

    float const scale_log2 = a.scale * kLog2e;
    float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
    int stage = 0, ring = 0;
    for (int32_t first = 0; first < query_rows.rows; first += kRows) {
        wait_for_copy_groups<0>();
        __syncthreads();
        int const next = ring == 2 ? 0 : ring + 1, after = next == 2 ? 0 : next + 1;
        if (first + kRows < query_rows.rows) load_query_rows<D>(a, shared, next, stage ^ 1);
        look_up(first + 2 * kRows, after);
        float p[8][4] = {}, ds[8][4] = {};  // transposed: [keys, rows]
        score<D>(p, shared.k, warp_row, shared.q[stage]);
        score<D>(ds, shared.v, warp_row, shared.d_o[stage]);
        bool const all_seen = first >= query_rows.local_rows && first + kRows <= query_rows.rows;
        int32_t const my_key = key + warp_row + lane / 4;
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int const row = n * 8 + lane % 4 * 2 + i % 2;
                float weight = exp2_approx(p[n][i] * scale_log2 - shared.base[stage][row]);
                if (!all_seen && my_key + i / 2 * 8 > shared.limit[ring][row]) weight = 0;
                p[n][i] = weight;
                ds[n][i] = weight * (ds[n][i] - shared.delta[stage][row]);
            }
        weigh<D>(dv, p, shared.d_o[stage]);
        weigh<D>(dk, ds, shared.q[stage]);
        stage ^= 1;
        ring = next;
    }
    wait_for_copy_groups<0>();  // where there was no row at all
    __syncthreads();
    write_dkv<D>(a, dk[0], a.scale, shared.k, warp_row, a.dk, key, block.end, query_rows.g);
    write_dkv<D>(a, dv[0], 1.0f, shared.v, warp_row, a.dv, key, block.end, query_rows.g);
}

}  // namespace

void dkv_sm80(Stage const& stage, BlockSparseGradients const& gradients) {
    AttentionArgs args = attention_args(stage, {}, gradients);
    args.tiles_per_block = tiles_per_block(stage.plan, 1, kTileKeys);
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        launch({"dkv_sm80", stage.plan.blocks * args.tiles_per_block, args.kv_heads, kAttentionThreads,
                sizeof(KeyShared<D>), stage.problem.stream},
               dkv_kernel<D>, args);
    });
}

}  // namespace perigee::block_sparse
