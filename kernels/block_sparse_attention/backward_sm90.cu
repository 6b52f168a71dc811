// The sm90 backward: all five products of a query tile against a KV tile of 128 keys, by persistent thread blocks that
// take work items. After FlashAttention-3 (Shah et al., arXiv 2407.08608), with gathered rows. Scores are transposed,
// so that weights are left factors straight from registers.
#include "kernels/block_sparse_attention/backward_sm90_producer.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/hopper/product.cuh"
#include "kernels/hopper/tensor_map.h"

namespace perigee::block_sparse {
namespace {

using hopper::Inner;

/// A warpgroup's part of a tile: 64 keys against kRows rows, and half of dq.
template <int D, bool kAddsToDq>
class Consumer {
    using T = Tiling<D>;
    static constexpr int kScores = T::kRows / 2;  // numbers per thread of [64, kRows]
    static constexpr int kSteps = T::kRows / 16;

  public:
    __device__ Consumer(BackwardArgs const& f, BackwardShared<D>& shared)
        : f_(f),
          shared_(shared),
          warpgroup_(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0)) {}  // known to be the warp's

    __device__ void run() {
        for (;; count_ += 2) {
            shared_.keys_full.wait(count_ / 2 % 2);
            WorkItem const& item = shared_.items[count_ / 2 % kItemRing];
            if (item.end == kNoWork) break;
            float dk[D / 2], dv[D / 2];
#pragma unroll
            for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0;
            process(item, dk, dv);
            arrive_as_warp(shared_.keys_free[count_ / 2 % 2]);
            finish(item, dk, dv);
        }
    }

  private:
    /// A thread's part of a tile's dq.
    struct QueryPart {
        bf16* to[2];
        uint32_t word[2][2][4];

        __device__ __forceinline__ void round(float const (&dq)[32], float const (&factor)[2]) {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                float const* const x = &dq[16 * (i / 4 % 2) + 4 * (i % 4) + 2 * (i / 8)];
                uint32_t& to = word[i / 8][i / 4 % 2][i % 4];
                if constexpr (kAddsToDq)
                    to = hopper::pack_halves(x[0] * factor[i / 8], x[1] * factor[i / 8]);
                else
                    to = pack(x[0], x[1]);
            }
        }
        __device__ __forceinline__ void write(bool add) const {
            uint32_t const thread = hopper::thread_anew(), column = (D == 128 ? thread / 128 * 64 : 0) + thread % 4 * 8;
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    bf16* const address = to[half] + column + 32 * part;
                    bool const there = to[half] != nullptr;  // a predicate of each: branches cost more
                    if (kAddsToDq && there) hopper::add_eight_halves(address, word[half][part]);
                    if (!kAddsToDq && there && !add) hopper::store_eight(address, word[half][part]);
                    if (!kAddsToDq && there && add) hopper::add_eight(address, word[half][part]);
                }
        }
    };

    __device__ void process(WorkItem const& item, float (&dk)[D / 2], float (&dv)[D / 2]) {
        int32_t const end = item.end;
        int32_t first = item.begin;
        if (first >= end) return;
        await_rows();
        bool const add = (item.flags & kAddToPartial) != 0;
        for (int last = -1; first < end; first += T::kRows) {
            int const stage = ring_.stage;
            float s[kScores], dp[kScores], dq[32];
            hopper::products_wait<0>();  // dk of the last tile
            if (last >= 0) arrive_as_warp(shared_.rows_free[last]);
            begin_with_stats(s, dp, stage);
            start_scores(s, shared_.k, shared_.q[stage]);
            start_scores(dp, shared_.v, shared_.d_o[stage]);
            hopper::products_wait<1>();  // all but dP
            hopper::pin(s);
            float const scale_log2 = f_.scale * kLog2e;
#pragma unroll
            for (float& x : s) x = exp2_approx(x * scale_log2);
            if (first + T::kRows > item.masked && first < item.masked_end) mask(s, stage, item.key + key_of_thread());
            uint32_t p[kSteps][4], ds[kSteps][4];
            to_left(p, s);
            hopper::products_wait<0>();
            hopper::pin(dp);
#pragma unroll
            for (int i = 0; i < kScores; ++i) dp[i] *= s[i];
            to_left(ds, dp);
            hopper::store_transposed<T::kRows>(shared_address(shared_.ds[count_ % 2]), hopper::thread_anew(), ds);
            add_products(dv, p, shared_.d_o[stage]);  // after dS, as in dense_attention
            hopper::fence_shared_for_async();
            hopper::named_sync(kScoresBarrier, kConsumers);
            start_query_gradient(dq);
            QueryPart part;
            part.to[0] = dq_of_row(stage, 0), part.to[1] = dq_of_row(stage, 1);
            hopper::products_wait<1>();  // dv, whose factors' registers are needed
            add_products(dk, ds, shared_.q[stage]);
            last = stage;
            ring_.advance();
            count_ ^= 1;
            if (first + T::kRows < end) await_rows();
            hopper::products_wait<1>();  // all but dk
            hopper::pin(dq);
            float factor[2] = {};
            if constexpr (kAddsToDq)
                for (int half = 0; half < 2; ++half) factor[half] = shared_.factor[last][row_of_dq(half)];
            part.round(dq, factor);
            part.write(add);  // while dk is made: what is read from shared memory after this waits for it
        }
        hopper::products_wait<0>();
        hopper::pin(dk);
        hopper::pin(dv);
        arrive_as_warp(shared_.rows_free[(ring_.stage + T::kStages - 1) % T::kStages]);
    }

    /// The first of a thread's two keys, of a run; of its columns of scores, which are rows of the tile; of its rows of
    /// dq.
    static __device__ uint32_t key_of_thread() {
        uint32_t const thread = hopper::thread_anew();
        return thread / 32 * 16 + thread % 32 / 4;
    }
    static __device__ uint32_t column_of_thread() { return hopper::thread_anew() % 4 * 2; }

    /// Until the rows of the step are there. They were written by ordinary copies and are read by the tensor cores: the
    /// fence is here, as the copying warps would wait for all the copies they have under way.
    __device__ void await_rows() const {
        shared_.rows_known[ring_.stage].wait(ring_.parity());
        shared_.rows_full[ring_.stage].wait(ring_.parity());
        hopper::fence_shared_for_async();
    }

    /// Loads what is subtracted from the rows' scores and dP into the accumulators of both, the same for every key.
    __device__ void begin_with_stats(float (&s)[kScores], float (&dp)[kScores], int stage) const {
        load_stats(s, shared_.base[stage], f_.score_of_base);
        load_stats(dp, shared_.delta[stage], -1);
        hopper::pin(s);
        hopper::pin(dp);
    }
    __device__ void load_stats(float (&x)[kScores], float const (&stats)[T::kRows], float factor) const {
        uint32_t const from = shared_address(&stats[column_of_thread()]);
#pragma unroll
        for (int j = 0; j < T::kRows / 8; ++j) {
            float first, second;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(first), "=f"(second)
                         : "r"(from + j * static_cast<uint32_t>(8 * sizeof(float)))
                         : "memory");
            x[4 * j] = x[4 * j + 2] = first * factor;
            x[4 * j + 1] = x[4 * j + 3] = second * factor;
        }
    }
    /// x' [64 keys, rows] += keys (k or v) times rows (q or do).
    __device__ void start_scores(float (&x)[kScores], unsigned char const* keys, unsigned char const* rows) const {
        uint32_t const left = shared_address(keys), right = shared_address(rows);
        hopper::add_products<Inner::columns, Inner::columns, D / 16>(
            x, [&](int step) { return hopper::columns_factor<kKvTile>(left, warpgroup_ * 64, step); },
            [&](int step) { return hopper::columns_factor<T::kRows>(right, 0, step); });
    }
    /// sum [64 keys, D] += x' [64 keys, rows] times rows (do or q).
    __device__ void add_products(float (&sum)[D / 2], uint32_t const (&x)[kSteps][4], unsigned char const* rows) const {
        uint32_t const right = shared_address(rows);
        hopper::add_products<Inner::rows>(
            sum, x, [&](int step) { return hopper::rows_factor<T::kRows>(right, 0, step); }, true);
    }
    /// Head size 128: all 64 rows, 64 columns. Head size 64: half of 128 rows, all columns.
    __device__ void start_query_gradient(float (&dq)[32]) const {
        uint32_t const left = shared_address(shared_.ds[count_ % 2]), right = shared_address(shared_.k);
        int const row = D == 128 ? 0 : warpgroup_ * 64, column_panel = D == 128 ? warpgroup_ : 0;
        hopper::start_products<Inner::columns, Inner::rows, kKvTile / 16>(
            dq, [&](int step) { return hopper::columns_factor<T::kRows>(left, row, step); },
            [&](int step) { return hopper::rows_factor<kKvTile>(right, column_panel, step); });
    }

    __device__ void mask(float (&s)[kScores], int stage, int32_t my_key) const {
        int32_t const* const limits = &shared_.limit[stage][column_of_thread()];
#pragma unroll
        for (int j = 0; j < T::kRows / 8; ++j) {
            int2 const limit = *reinterpret_cast<int2 const*>(limits + 8 * j);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (my_key + half * 8 > limit.x) s[4 * j + 2 * half] = 0;
                if (my_key + half * 8 > limit.y) s[4 * j + 2 * half + 1] = 0;
            }
        }
    }
    /// The thread's first or second row of a tile's dq; where its part goes, null where there is no row.
    static __device__ uint32_t row_of_dq(int half) {
        uint32_t const thread = hopper::thread_anew(), row = thread % 128 / 32 * 16 + thread % 32 / 4 + half * 8;
        return row + (D == 128 ? 0 : thread / 128 * 64);
    }
    __device__ bf16* dq_of_row(int stage, int half) const { return shared_.to[stage][row_of_dq(half)]; }
    __device__ void finish(WorkItem const& item, float (&dk)[D / 2], float (&dv)[D / 2]) const {
        int const consumer = hopper::thread_anew();
        if (item.sums >= 0) {
            bool const add = (item.flags & kAddToSums) != 0;
            hopper::store_sums<D, kConsumers>(sums_of<D>(f_.sums, item.sums, 0, consumer), dk, add);
            hopper::store_sums<D, kConsumers>(sums_of<D>(f_.sums, item.sums, 1, consumer), dv, add);
            return;
        }
        int32_t const key = item.key + consumer / 128 * 64;
        write_key_gradient<D>(f_, dk, 0, item.g, key, item.key_end);
        write_key_gradient<D>(f_, dv, 1, item.g, key, item.key_end);
    }

    BackwardArgs const& f_;
    BackwardShared<D>& shared_;
    int warpgroup_;
    RingPosition<T::kStages> ring_;
    uint32_t count_ = 0;  ///< of items, and in the lowest bit which buffer of dS is next
};

template <int D, bool kAddsToDq>
__global__ void __launch_bounds__(kProducers + kConsumers, 1)
    backward_kernel(__grid_constant__ ProductArgs const args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    BackwardArgs const& f = args;
    auto& shared = hopper::dynamic_tiles<BackwardShared<D>>();
    if (threadIdx.x == 0) {
        for (int i = 0; i < Tiling<D>::kStages; ++i) {
            shared.rows_known[i].init(kWarpArrivals);
            shared.rows_full[i].init(2 * 32);
            shared.rows_free[i].init(kConsumers / 32 * kWarpArrivals);
        }
        for (int i = 0; i < 2; ++i) {
            shared.item_known[i].init(kWarpArrivals);
            shared.keys_free[i].init(kConsumers / 32 * kWarpArrivals);
        }
        shared.keys_full.init(1);
        shared.keys_here.init(1);
        hopper::publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < kConsumers) {
        hopper::take_registers<240>();
        Consumer<D, kAddsToDq>(f, shared).run();
    } else {
        hopper::give_registers_up<24>();
        switch (threadIdx.x / 32 - kConsumers / 32) {
            case 0:
                RowScheduler<D>(f, shared).run();
                break;
            case 1:
                copy_rows(shared, f.q, shared.q, [&](int stage, int i, int32_t at, bool there) {
                    copy_4(&shared.base[stage][i], &f.rows[at].base, there);
                });
                break;
            case 2:
                copy_rows(shared, f.d_o, shared.d_o, [&](int stage, int i, int32_t at, bool there) {
                    copy_4(&shared.delta[stage][i], &f.rows[at].delta, there);
                    if constexpr (kAddsToDq) copy_4(&shared.factor[stage][i], &f.rows[at].factor, there);
                });
                break;
            default:
                copy_keys(args, shared);
        }
    }
#endif
}

}  // namespace

void attend_backward_sm90(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients) {
    BlockSparseShape const& shape = stage.plan.shape;
    BackwardArgs const f = backward_args(stage, pass, gradients);
    auto const map = [&](bf16 const* x) {
        return hopper::rows_map(x, shape.tokens, shape.kv_heads, shape.head_dim, kKvTile);
    };
    with_sm90_head_dim(shape.head_dim, [&]<int D>() {
        launch({.name = "attend_backward_sm90",
                .grid = {multiprocessors()},
                .threads = kProducers + kConsumers,
                .shared_bytes = sizeof(BackwardShared<D>),
                .stream = stage.problem.stream},
               f.adds_to_dq ? backward_kernel<D, true> : backward_kernel<D, false>, ProductArgs{f, map(f.k), map(f.v)});
    });
}

}  // namespace perigee::block_sparse
