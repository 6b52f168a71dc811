// The dense backward: all five products of a row tile against a KV tile of 128 keys, by persistent thread blocks. After
// FlashAttention-3 (Shah et al., arXiv 2407.08608). Scores are transposed, so that weights are left factors straight
// from registers. README.md has a picture.
#include "kernels/common/launch.cuh"
#include "kernels/dense_attention/backward_sm90_producer.cuh"
#include "kernels/hopper/product.cuh"
#include "kernels/hopper/tensor_map.h"

namespace perigee::dense {
namespace {

using hopper::Inner;

constexpr int kScoresBarrier = 1;

/// A warpgroup's part of a tile: 64 keys against kRows rows, and half of dq.
template <int D, bool kOrdered, bool kWindowed>
class Consumer {
    using T = BackwardTiling<D>;
    static constexpr int kScores = T::kRows / 2;  // numbers per thread of [64, kRows]
    static constexpr int kSteps = T::kRows / 16;

  public:
    __device__ Consumer(BackwardArgs const& a, BackwardShared<D>& shared)
        : a_(a), shared_(shared), warpgroup_(hopper::uniform(static_cast<int>(threadIdx.x) / 128)) {}

    __device__ void run() {
        for (uint32_t n = 0;; ++n) {
            shared_.keys_full.wait(n & 1);
            if (shared_.item.head < 0) break;
            float dk[D / 2], dv[D / 2];
#pragma unroll
            for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0;
            process(dk, dv);
            Tile const item = shared_.item;
            release(shared_.keys_free);
            finish(item, dk, dv);
        }
    }

  private:
    __device__ void process(float (&dk)[D / 2], float (&dv)[D / 2]) {
        Tile const& item = shared_.item;
        RowTiles<D, kOrdered, kWindowed> const tiles(item, a_.window);
        float4* sums = a_.sums + (int64_t{item.head * a_.group} * a_.row_tiles + tiles.index) * T::kSums + threadIdx.x;
        int32_t heads = a_.group, tile = 0;  // heads from this one on; row tile of the head
        await_rows();
        for (bool first = true; heads > 0; first = false) {
            int const stage = ring_.stage;
            float s[kScores], dp[kScores], dq[32];
            start_scores(s, shared_.k, shared_.q[stage]);
            hopper::products_wait<1>();  // dk of the last tile
            if (!first) release_last();
            start_scores(dp, shared_.v, shared_.d_o[stage]);
            hopper::products_wait<1>();
            hopper::pin(s);
            weights(s, stage, a_.scale * kLog2e);
            int32_t const past = RowTiles<D, kOrdered, kWindowed>(item, a_.window).past_diagonal(tile);
            if (past < T::kTilesOfKv) mask(s, past * T::kRows);
            if (kWindowed && (past + 1) * T::kRows > a_.window) mask_window(s, past * T::kRows - a_.window);
            uint32_t p[kSteps][4], ds[kSteps][4];
            to_left(p, s);
            hopper::products_wait<0>();
            hopper::pin(dp);
            score_gradients(dp, s, stage);
            to_left(ds, dp);
            hopper::store_transposed<T::kRows>(shared_address(shared_.ds[buffer_]), ds);
            add_products(dv, p, shared_.d_o[stage]);  // before dS it was slower: README.md
            hopper::fence_shared_for_async();
            hopper::named_sync(kScoresBarrier, kConsumers);
            start_query_gradient(dq);
            hopper::products_wait<1>();  // dv, whose factors' registers are needed
            add_products(dk, ds, shared_.q[stage]);
            ring_.advance();
            buffer_ ^= 1;
            float4* const to = sums;
            sums += T::kSums;
            if (++tile == RowTiles<D, kOrdered, kWindowed>(item, a_.window).count) {
                sums += int64_t{a_.row_tiles - tile} * T::kSums;
                tile = 0, --heads;
            }
            if (heads > 0) await_rows();
            hopper::products_wait<1>();  // all but dk
            hopper::pin(dq);
            if constexpr (kOrdered) {
                shared_.dq_free.wait((steps_++ & 1) ^ 1);
                hopper::store_sums<64, kConsumers>(shared_.dq + hopper::thread_anew(), dq);
                hopper::fence_shared_for_async();
                release(shared_.dq_full);
            } else {
                hopper::store_sums<64, kConsumers>(to, dq, true);
            }
        }
        hopper::products_wait<0>();
        hopper::pin(dk);
        hopper::pin(dv);
        release_last();
    }

    __device__ void await_rows() const { shared_.rows_full[ring_.stage].wait(ring_.parity()); }
    /// The rows of the step before.
    __device__ void release_last() const { release(shared_.rows_free[(ring_.stage + T::kStages - 1) % T::kStages]); }
    /// This warp no longer reads what `barrier` guards.
    __device__ static void release(Barrier& barrier) {
        __syncwarp();
        if (hopper::thread_anew() % 32 == 0) barrier.arrive();
    }

    /// x' [64 keys, rows] = keys (k or v) times rows (q or do).
    __device__ void start_scores(float (&x)[kScores], unsigned char const* keys, unsigned char const* rows) const {
        uint32_t const left = shared_address(keys), right = shared_address(rows);
        hopper::start_products<Inner::columns, Inner::columns, D / 16>(
            x, [&](int step) { return hopper::columns_factor<kKvTile>(left, warpgroup_ * 64, step); },
            [&](int step) { return hopper::columns_factor<T::kRows>(right, 0, step); });
    }
    /// sum [64 keys, D] += x' [64 keys, rows] times rows (do or q).
    __device__ void add_products(float (&sum)[D / 2], uint32_t const (&x)[kSteps][4], unsigned char const* rows) const {
        uint32_t const right = shared_address(rows);
        hopper::add_products<Inner::rows>(
            sum, x, [&](int step) { return hopper::rows_factor<T::kRows>(right, 0, step); }, true);
    }
    /// Head size 64: half of 128 rows, all columns. Others: all 64 rows, a panel of columns.
    __device__ void start_query_gradient(float (&dq)[32]) const {
        uint32_t const left = shared_address(shared_.ds[buffer_]), right = shared_address(shared_.k);
        int const row = D > 64 ? 0 : warpgroup_ * 64, column_panel = D > 64 ? warpgroup_ : 0;
        hopper::start_products<Inner::columns, Inner::rows, kKvTile / 16>(
            dq, [&](int step) { return hopper::columns_factor<T::kRows>(left, row, step); },
            [&](int step) { return hopper::rows_factor<kKvTile>(right, column_panel, step); });
    }

    /// The first of a thread's two keys of the KV tile; of its columns of scores, which are rows.
    static __device__ uint32_t key_of_thread() {
        uint32_t const thread = hopper::thread_anew();
        return thread / 32 * 16 + thread % 32 / 4;
    }
    static __device__ uint32_t column_of_thread() { return hopper::thread_anew() % 4 * 2; }

    __device__ void weights(float (&s)[kScores], int stage, float scale_log2) const {
        float const* const bases = &shared_.stats[stage][0][column_of_thread()];
#pragma unroll
        for (int j = 0; j < T::kRows / 8; ++j) {
            float2 const base = *reinterpret_cast<float2 const*>(bases + 8 * j);
            s[4 * j] = exp2_approx(s[4 * j] * scale_log2 - base.x);
            s[4 * j + 1] = exp2_approx(s[4 * j + 1] * scale_log2 - base.y);
            s[4 * j + 2] = exp2_approx(s[4 * j + 2] * scale_log2 - base.x);
            s[4 * j + 3] = exp2_approx(s[4 * j + 3] * scale_log2 - base.y);
        }
    }
    /// On the diagonal: `row`, where the row tile begins in the KV tile.
    __device__ void mask(float (&s)[kScores], int row) const {
        int const first = row + static_cast<int>(column_of_thread()), key = static_cast<int>(key_of_thread());
#pragma unroll
        for (int i = 0; i < kScores; ++i)
            if (key + i % 4 / 2 * 8 > first + i / 4 * 8 + i % 2) s[i] = 0;
    }
    /// Where the window ends: `row`, where the row tile begins in the KV tile, minus the window.
    __device__ void mask_window(float (&s)[kScores], int row) const {
        int const first = row + static_cast<int>(column_of_thread()), key = static_cast<int>(key_of_thread());
#pragma unroll
        for (int i = 0; i < kScores; ++i)
            if (key + i % 4 / 2 * 8 <= first + i / 4 * 8 + i % 2) s[i] = 0;
    }
    __device__ void score_gradients(float (&dp)[kScores], float const (&p)[kScores], int stage) const {
        float const* const deltas = &shared_.stats[stage][1][column_of_thread()];
#pragma unroll
        for (int j = 0; j < T::kRows / 8; ++j) {
            float2 const delta = *reinterpret_cast<float2 const*>(deltas + 8 * j);
#pragma unroll
            for (int half = 0; half < 4; half += 2) {
                dp[4 * j + half] = p[4 * j + half] * (dp[4 * j + half] - delta.x);
                dp[4 * j + half + 1] = p[4 * j + half + 1] * (dp[4 * j + half + 1] - delta.y);
            }
        }
    }
    __device__ void finish(Tile const& item, float (&dk)[D / 2], float (&dv)[D / 2]) const {
        int32_t const key = item.row + static_cast<int32_t>(hopper::thread_anew() / 128 * 64);
        int64_t const at = (int64_t{item.begin + key} * a_.kv_heads + a_.first_kv_head + item.head) * D;
        hopper::write_rows<D>(a_.dk + at, int64_t{a_.kv_heads} * D, item.end - key, dk, a_.scale, false);
        hopper::write_rows<D>(a_.dv + at, int64_t{a_.kv_heads} * D, item.end - key, dv, 1, false);
    }

    BackwardArgs const& a_;
    BackwardShared<D>& shared_;
    int warpgroup_;
    RingPosition<T::kStages> ring_;
    uint32_t buffer_ = 0;  ///< of dS
    uint32_t steps_ = 0;
};

template <int D, bool kOrdered, bool kWindowed>
__global__ void __launch_bounds__(kProducers + kConsumers, 1)
    backward_kernel(__grid_constant__ BackwardArgs const args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    auto& shared = hopper::dynamic_tiles<BackwardShared<D>>();
    if (threadIdx.x == 0) init_barriers(shared);
    start_early();
    __syncthreads();
    if (threadIdx.x < kConsumers) {
        hopper::take_registers<BackwardTiling<D>::kConsumerRegisters>();
        Consumer<D, kOrdered, kWindowed>(args, shared).run();
    } else {
        hopper::give_registers_up<BackwardTiling<D>::kProducerRegisters>();
        int const warp = threadIdx.x / 32 - kConsumers / 32;
        if (warp == 3)
            find_items(args, shared);
        else if (warp == 0 && threadIdx.x % 32 == 0)
            bring_tiles<D, kOrdered, kWindowed>(args, shared);
        else if (warp == 1)
            clear_ends<D, kOrdered, kWindowed>(args, shared);
        else if (warp == 2)
            add_query_gradients<D, kOrdered, kWindowed>(args, shared);
    }
#endif
}

}  // namespace
}  // namespace perigee::dense

namespace perigee {

void dense_attention_backward(DenseAttentionProblem const& p, DenseAttentionGradients const& g) {
    using namespace dense;
    DenseAttentionShape const& shape = p.shape;
    DenseBackwardPlan const plan(shape);
    auto* const scratch = static_cast<unsigned char*>(p.scratch);
    with_tiling(shape, [&]<int D, bool kWindowed>() {
        using T = BackwardTiling<D>;
        static_assert(sizeof(BackwardShared<D>) <= 227 << 10, "more than a thread block can have");
        auto const group = static_cast<int32_t>(shape.heads / shape.kv_heads);
        auto const rows = [&](bf16 const* x) { return hopper::rows_map(x, shape.tokens, shape.heads, D, T::kRows); };
        auto const keys = [&](bf16 const* x) { return hopper::rows_map(x, shape.tokens, shape.kv_heads, D, kKvTile); };
        for (int64_t first = 0; first < shape.kv_heads; first += plan.pass_kv_heads) {
            int64_t const heads = std::min(plan.pass_kv_heads, shape.kv_heads - first);
            Tiling const tiling{kKvTile, static_cast<int32_t>(heads), 1, 8 * D * group};
            BackwardArgs const args{
                .schedule = schedule_tiles(p, scratch, tiling),
                .q_map = rows(p.q),
                .do_map = rows(g.d_o),
                .k_map = keys(p.k),
                .v_map = keys(p.v),
                .stats = reinterpret_cast<float*>(scratch + plan.stats),
                .turns = shape.deterministic ? reinterpret_cast<int32_t*>(scratch + plan.turns) : nullptr,
                .sums = reinterpret_cast<float4*>(scratch + plan.sums),
                .o = g.o,
                .d_o = g.d_o,
                .lse = g.lse,
                .dq = g.dq,
                .dk = g.dk,
                .dv = g.dv,
                .scale = static_cast<float>(p.scale),
                .heads = static_cast<int32_t>(shape.heads),
                .kv_heads = static_cast<int32_t>(shape.kv_heads),
                .group = group,
                .first_kv_head = static_cast<int32_t>(first),
                .pass_kv_heads = static_cast<int32_t>(heads),
                .row_tiles = static_cast<int32_t>(plan.kv_tiles * T::kTilesOfKv),
                .window = window_of(shape)};
            preprocess_backward<D>(args, p.stream);
            launch({"dense_attention_backward", std::min(multiprocessors(), plan.kv_tiles * heads), 1,
                    kProducers + kConsumers, sizeof(BackwardShared<D>), p.stream, 1, true},
                   shape.deterministic ? backward_kernel<D, true, kWindowed> : backward_kernel<D, false, kWindowed>,
                   args);
            convert_query_gradient<D>(args, p.stream);
        }
    });
}

}  // namespace perigee
