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

/// Waits until so many parts of a KV tile are done. They began before this part. Consumers wait before they ask for the
/// next item: while they wait, their thread block has claimed no row tile that it has not got dq for. So the earliest
/// unfinished item waits for no other.
[[maybe_unused]] __device__ __forceinline__ void await_part(int32_t const* done, int32_t count) {
    int32_t now;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(done) : "memory");
    while (now < count);
}
[[maybe_unused]] __device__ __forceinline__ void set_parts(int32_t* done, int32_t count) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(done), "r"(count) : "memory");
}

/// A warpgroup's part of a tile: 64 keys against kRows rows, and half of dq.
template <int D, bool kOrdered, bool kWindowed>
class Consumer {
    using T = BackwardTiling<D>;
    static constexpr int kScores = T::kRows / 2;  // numbers per thread of [64, kRows]
    static constexpr int kSteps = T::kRows / 16;
    static constexpr int kScoresBarrier = 1;

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
            if constexpr (T::kAhead)
                process_ahead(dk, dv);
            else
                process_in_turn(dk, dv);
            Tile const item = shared_.item;
            if (in_parts() && item.part > 0) await_part(parts_done(item), item.part);
            shared_.keys_free.arrive_as_one();
            finish(item, dk, dv);
        }
    }

  private:
    __device__ bool in_parts() const { return D == 128 && !kOrdered && !kWindowed && a_.item_heads < a_.group; }
    __device__ int64_t kv_tile(Tile const& item) const {
        return int64_t{item.head} * (a_.row_tiles / T::kTilesOfKv) + item.index;
    }
    __device__ int32_t* parts_done(Tile const& item) const { return a_.parts_done + kv_tile(item); }

    /// A step is a row tile of a query head. The next scores are computed while this step's dq is added. dk comes in
    /// halves, each where the tensor cores would be idle (README.md).
    __device__ void process_ahead(float (&dk)[D / 2], float (&dv)[D / 2]) {
        int32_t const tiles = RowTiles<D, kWindowed>(shared_.item, a_.window).count;
        int32_t left = a_.item_heads * tiles;  // steps
        Step<kOrdered> step(tiles, a_.item_heads);
        float s[kScores], dp[kScores];
        uint32_t ds[kSteps][4];
        await_rows(ring_);
        begin_with_stats(s, dp);
        start_scores(s, shared_.k, shared_.q[ring_.stage]);
        start_scores(dp, shared_.v, shared_.d_o[ring_.stage]);
        hopper::products_wait<1>();  // all but dP
        start_gradients(ds, s, dp, dk, dv, step.tile, left > 1);
        while (--left > 0) {
            int const stage = ring_.stage;
            store_query_gradient(ds, dk);
            step.next(tiles, a_.item_heads);
            begin_with_stats(s, dp);
            start_scores(s, shared_.k, shared_.q[ring_.stage]);
            start_scores(dp, shared_.v, shared_.d_o[ring_.stage]);
            hopper::products_wait<1>();  // all but dP
            shared_.rows_free[stage].arrive_as_one();
            start_gradients(ds, s, dp, dk, dv, step.tile, left > 1);
        }
        int const stage = ring_.stage;
        store_query_gradient(ds, dk);
        hopper::products_wait<0>();
        shared_.rows_free[stage].arrive_as_one();
        hopper::pin(dk);
        hopper::pin(dv);
    }
    /// From scores to dS, in registers for dk and in shared memory for dq; dv; the first half of dk, which is under way
    /// afterwards. `past`: row tiles from the diagonal's first to this one. Waits for the rows of the next step, if
    /// there are `more`.
    __device__ void start_gradients(uint32_t (&ds)[kSteps][4], float (&s)[kScores], float (&dp)[kScores],
                                    float (&dk)[D / 2], float (&dv)[D / 2], int32_t past, bool more) {
        hopper::pin(s);
        weights(s);
        mask_borders(s, past);
        uint32_t p[kSteps][4];
        to_left(p, s);
        add_products(dv, p, shared_.d_o[ring_.stage]);
        hopper::products_wait<1>();  // all but dv
        hopper::pin(dp);
#pragma unroll
        for (int i = 0; i < kScores; ++i) dp[i] *= s[i];
        to_left(ds, dp);
        hopper::store_transposed<T::kRows>(shared_address(shared_.ds[buffer_]), threadIdx.x, ds);
        hopper::fence_shared_for_async();
        if (more) {
            auto next = ring_;
            next.advance();
            await_rows(next);
        }
        add_products<0, kSteps / 2>(dk, ds, shared_.q[ring_.stage]);
        hopper::named_sync(kScoresBarrier, kConsumers);
        hopper::products_wait<1>();  // dv, whose factors' registers are needed
        hopper::pin(dv);
    }
    /// Puts dq into shared memory for the producer that adds it, and starts the other half of dk.
    __device__ void store_query_gradient(uint32_t const (&ds)[kSteps][4], float (&dk)[D / 2]) {
        float dq[32];
        start_query_gradient(dq);
        add_products<kSteps / 2, kSteps>(dk, ds, shared_.q[ring_.stage]);
        ring_.advance();
        buffer_ ^= 1;
        hopper::products_wait<1>();  // all but dk
        hopper::pin(dq);
        hand_over(dq);
    }
    /// To the producer warp that adds dq, as soon as it has read the dq of the step before.
    __device__ void hand_over(float const (&dq)[32]) {
        shared_.dq_free.wait((steps_++ & 1) ^ 1);
        hopper::store_sums<64, kConsumers>(shared_.dq + threadIdx.x, dq);
        shared_.dq_full.arrive_as_one();
    }
    /// Loads the stage's row stats into the accumulators of scores and dP, the same for every key: nothing is left to
    /// subtract.
    __device__ void begin_with_stats(float (&s)[kScores], float (&dp)[kScores]) const {
        load_stats(s, 0);
        load_stats(dp, 1);
        hopper::pin(s);
        hopper::pin(dp);
    }
    __device__ void load_stats(float (&x)[kScores], int which) const {
        uint32_t const from = shared_address(&shared_.stats[ring_.stage][which][column_of_thread()]);
#pragma unroll
        for (int j = 0; j < T::kRows / 8; ++j) {
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(x[4 * j]), "=f"(x[4 * j + 1])
                         : "r"(from + j * static_cast<uint32_t>(8 * sizeof(float)))
                         : "memory");
            x[4 * j + 2] = x[4 * j], x[4 * j + 3] = x[4 * j + 1];
        }
    }

    /// As process_ahead(), but a step's scores begin when the step before has given its registers back.
    __device__ void process_in_turn(float (&dk)[D / 2], float (&dv)[D / 2]) {
        Tile const& item = shared_.item;
        Step<kOrdered> step(RowTiles<D, kWindowed>(item, a_.window).count, a_.item_heads);
        await_rows(ring_);
        for (bool first = true; step.any(); first = false) {
            int const stage = ring_.stage;
            float s[kScores], dp[kScores], dq[32];
            hopper::products_wait<0>();  // dk of the last tile
            if (!first) release_last();
            load_stats(s, 0);
            hopper::pin(s);
            start_scores(s, shared_.k, shared_.q[stage]);
            start_scores<false>(dp, shared_.v, shared_.d_o[stage]);
            hopper::products_wait<1>();  // all but dP
            hopper::pin(s);
            weights(s);
            mask_borders(s, step.tile);
            uint32_t p[kSteps][4], ds[kSteps][4];
            to_left(p, s);
            hopper::products_wait<0>();
            hopper::pin(dp);
            score_gradients(dp, s, stage);
            to_left(ds, dp);
            hopper::store_transposed<T::kRows>(shared_address(shared_.ds[buffer_]), hopper::thread_anew(), ds);
            add_products(dv, p, shared_.d_o[stage]);
            hopper::fence_shared_for_async();
            add_products<0, kSteps / 2>(dk, ds, shared_.q[stage]);
            hopper::named_sync(kScoresBarrier, kConsumers);
            start_query_gradient(dq);
            hopper::products_wait<2>();  // dv, whose factors' registers are needed
            add_products<kSteps / 2, kSteps>(dk, ds, shared_.q[stage]);
            ring_.advance();
            buffer_ ^= 1;
            step.next(RowTiles<D, kWindowed>(item, a_.window).count, a_.item_heads);
            if (step.any()) await_rows(ring_);
            hopper::products_wait<1>();  // all but dk
            hopper::pin(dq);
            hand_over(dq);
        }
        hopper::products_wait<0>();
        hopper::pin(dk);
        hopper::pin(dv);
        release_last();
    }

    __device__ void await_rows(RingPosition<T::kStages> const& at) const {
        shared_.rows_full[at.stage].wait(at.parity());
    }
    /// The rows of the step before.
    __device__ void release_last() const {
        shared_.rows_free[(ring_.stage + T::kStages - 1) % T::kStages].arrive_as_one();
    }

    /// x' [64 keys, rows] = keys (k or v) times rows (q or do), or added to what x holds.
    template <bool kAdd = true>
    __device__ void start_scores(float (&x)[kScores], unsigned char const* keys, unsigned char const* rows) const {
        uint32_t const left = shared_address(keys), right = shared_address(rows);
        auto const of_keys = [&](int step) { return hopper::columns_factor<kKvTile>(left, warpgroup_ * 64, step); };
        auto const of_rows = [&](int step) { return hopper::columns_factor<T::kRows>(right, 0, step); };
        if constexpr (kAdd)
            hopper::add_products<Inner::columns, Inner::columns, D / 16>(x, of_keys, of_rows);
        else
            hopper::start_products<Inner::columns, Inner::columns, D / 16>(x, of_keys, of_rows);
    }
    /// sum [64 keys, D] += x' [64 keys, rows] times rows (do or q), or a part of the sum over rows, 16 a step.
    template <int kFrom = 0, int kTo = kSteps>
    __device__ void add_products(float (&sum)[D / 2], uint32_t const (&x)[kSteps][4], unsigned char const* rows) const {
        uint32_t const right = shared_address(rows);
        if constexpr (kFrom == 0) hopper::pin(sum);  // later parts are added while the first may be under way
        hopper::products_begin();
#pragma unroll
        for (int step = kFrom; step < kTo; ++step)
            hopper::multiply<Inner::rows>(sum, x[step], hopper::rows_factor<T::kRows>(right, 0, step), true);
        hopper::products_commit();
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
    static __device__ uint32_t column_of_thread() {
        // To read it anew waits behind products; with heads of 64 there is no register to keep it.
        return (T::kAhead ? threadIdx.x : hopper::thread_anew()) % 4 * 2;
    }

    __device__ void weights(float (&s)[kScores]) const {
        float const scale_log2 = a_.scale * kLog2e;
#pragma unroll
        for (float& x : s) x = exp2_approx(x * scale_log2);
    }
    /// Weights past the diagonal and the window become zero.
    __device__ void mask_borders(float (&s)[kScores], int32_t past) const {
        if (past < T::kTilesOfKv) mask(s, past * T::kRows);
        if (kWindowed && (past + 1) * T::kRows > a_.window) mask_window(s, past * T::kRows - a_.window);
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
    /// dS = P (dP - delta), in place of dP. The stats hold -delta.
    __device__ void score_gradients(float (&dp)[kScores], float const (&p)[kScores], int stage) const {
        float const* const deltas = &shared_.stats[stage][1][column_of_thread()];
#pragma unroll
        for (int j = 0; j < T::kRows / 8; ++j) {
            float2 const delta = *reinterpret_cast<float2 const*>(deltas + 8 * j);
#pragma unroll
            for (int half = 0; half < 4; half += 2) {
                dp[4 * j + half] = p[4 * j + half] * (dp[4 * j + half] + delta.x);
                dp[4 * j + half + 1] = p[4 * j + half + 1] * (dp[4 * j + half + 1] + delta.y);
            }
        }
    }
    __device__ void finish(Tile const& item, float (&dk)[D / 2], float (&dv)[D / 2]) const {
        if (in_parts() && !add_up(item, dk, dv)) return;
        int32_t const key = item.row + static_cast<int32_t>(hopper::thread_anew() / 128 * 64);
        int64_t const at = (int64_t{item.begin + key} * a_.kv_heads + a_.first_kv_head + item.head) * D;
        hopper::write_rows<D>(a_.dk + at, int64_t{a_.kv_heads} * D, item.end - key, dk, a_.scale, false);
        hopper::write_rows<D>(a_.dv + at, int64_t{a_.kv_heads} * D, item.end - key, dv, 1, false);
    }

    /// Adds what the parts before have. Stores the sums, unless this is the last part: then returns true.
    __device__ bool add_up(Tile const& item, float (&dk)[D / 2], float (&dv)[D / 2]) const {
        float4* const sums = a_.key_sums + kv_tile(item) * (D / 4 * kConsumers) + hopper::thread_anew();
        if (item.part > 0) {
            add_sums(dk, sums);
            add_sums(dv, sums + D / 8 * kConsumers);
        }
        if ((item.part + 1) * a_.item_heads == a_.group) return true;
        store_sums(dk, sums);
        store_sums(dv, sums + D / 8 * kConsumers);
        hopper::named_sync(kScoresBarrier, kConsumers);
        if (hopper::thread_anew() == 0) set_parts(parts_done(item), item.part + 1);
        return false;
    }
    static __device__ void add_sums(float (&x)[D / 2], float4 const* sums) {
#pragma unroll
        for (int i = 0; i < D / 8; ++i) {
            float4 const y = __ldcg(sums + i * kConsumers);
            x[4 * i] += y.x, x[4 * i + 1] += y.y, x[4 * i + 2] += y.z, x[4 * i + 3] += y.w;
        }
    }
    static __device__ void store_sums(float const (&x)[D / 2], float4* sums) {
#pragma unroll
        for (int i = 0; i < D / 8; ++i)
            __stcg(sums + i * kConsumers, make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]));
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
            auto const parts = static_cast<int32_t>(plan.parts);
            Tiling const tiling{kKvTile, static_cast<int32_t>(heads), 1, 8 * D * group / parts, parts};
            BackwardArgs const args{.schedule = schedule_tiles(p, scratch, tiling),
                                    .q_map = rows(p.q),
                                    .do_map = rows(g.d_o),
                                    .k_map = keys(p.k),
                                    .v_map = keys(p.v),
                                    .stats = reinterpret_cast<float*>(scratch + plan.stats),
                                    .turns = reinterpret_cast<int32_t*>(scratch + plan.turns),
                                    .sums = reinterpret_cast<float4*>(scratch + plan.sums),
                                    .parts_done = reinterpret_cast<int32_t*>(scratch + plan.parts_done),
                                    .key_sums = reinterpret_cast<float4*>(scratch + plan.key_sums),
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
                                    .item_heads = group / parts,
                                    .first_kv_head = static_cast<int32_t>(first),
                                    .pass_kv_heads = static_cast<int32_t>(heads),
                                    .row_tiles = static_cast<int32_t>(plan.kv_tiles * T::kTilesOfKv),
                                    .window = window_of(shape)};
            preprocess_backward<D>(args, p.stream);
            launch({.name = "dense_attention_backward",
                    .grid = {std::min(multiprocessors(), plan.kv_tiles * heads * parts)},
                    .threads = kProducers + kConsumers,
                    .shared_bytes = sizeof(BackwardShared<D>),
                    .stream = p.stream,
                    .early = true},
                   shape.deterministic ? backward_kernel<D, true, kWindowed> : backward_kernel<D, false, kWindowed>,
                   args);
            convert_query_gradient<D>(args, p.stream);
        }
    });
}

}  // namespace perigee
