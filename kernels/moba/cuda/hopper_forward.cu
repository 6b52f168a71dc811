// The forward on Hopper: tiles of 128 rows of q against tiles of 128 keys, by persistent thread blocks whose warps have
// different work. One warp has the copy engine bring keys and values, three gather the rows of a tile each, and two
// warpgroups of 64 rows do products and softmax. Those take turns at the tensor cores: while one computes exponentials,
// the products of the other run (FlashAttention-3, arXiv 2407.08608). kernels/moba/README.md has a picture.
#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/hopper/product.cuh"
#include "kernels/hopper/tensor_map.h"
#include "kernels/moba/cuda/hopper_forward.h"
#include "kernels/moba/cuda/hopper_rows.cuh"
#include "kernels/moba/cuda/hopper_walk.cuh"
#include "kernels/moba/cuda/launch.cuh"

namespace perigee::moba {
namespace {

using hopper::Barrier;
using hopper::Inner;
using hopper::RingPosition;

constexpr int kRows = 128;  // of a tile
constexpr int kThreads = 3 * 128;
constexpr int kConsumerWarps = 8;

/// Listed rows meet many keys: large tiles. Own rows meet half a block and then wait for partial results to merge:
/// small tiles, which waste less beyond the diagonal, leave room in shared memory to read those ahead.
template <int kHeadDim, bool kOwnRows>
struct Tiling {
    static constexpr int D = kHeadDim;
    static constexpr bool kOwn = kOwnRows;
    static constexpr int kKeys = 128;
    static constexpr int kRowStages = kOwn ? 2 : 3;  // tiles of rows; each has its own gathering warp
    static constexpr int kKeyStages = D == 64 ? 4 : 2;
    static constexpr int kVisitStages = kOwn ? (D == 64 ? 4 : 1) : 0;

    using Walk = std::conditional_t<kOwn, OwnWalk<kRows>, ListedWalk<kRows>>;
    using Ring = VisitRing<D, kVisitStages>;
};

struct ForwardArgs {
    AttentionArgs attention;
    CUtensorMap k, v;
    int32_t heads;   ///< of the wave
    bool keys_stay;  ///< all keys of a block fit into the ring: tiles of one block follow each other and share them
};

/// What consumers must know of a tile of rows.
struct TileOfRows {
    int32_t at[kRows];    ///< where the row's result goes: listed rows' slot, own rows' place in q; -1 for no row
    int32_t key_begin;    ///< as tokens
    int32_t key_tiles;    ///< 0: there are no more tiles of rows
    int32_t seen_by_all;  ///< the last key that every row sees
    int32_t past;         ///< blocks of the document before the rows' own
    int32_t first_slot;   ///< of own rows: where the first row's partial results begin, were it there
    bool keys_go_on;      ///< the next tile has the same keys
};

template <class T>
struct ForwardShared {
    unsigned char q[T::kRowStages][hopper::tile_bytes<kRows, T::D>()];
    unsigned char k[T::kKeyStages][hopper::tile_bytes<T::kKeys, T::D>()];
    unsigned char v[T::kKeyStages][hopper::tile_bytes<T::kKeys, T::D>()];
    unsigned char visits[T::kVisitStages * T::Ring::kBytes + 16];
    TileOfRows rows[T::kRowStages];
    Barrier q_full[T::kRowStages], q_free[T::kRowStages];
    Barrier k_full[T::kKeyStages], k_free[T::kKeyStages];
    Barrier v_full[T::kKeyStages], v_free[T::kKeyStages];
};

template <class T>
__device__ void init_barriers(ForwardShared<T>& shared) {
    for (int i = 0; i < T::kRowStages; ++i) {
        shared.q_full[i].init(32);
        shared.q_free[i].init(kConsumerWarps * 32);
    }
    for (int i = 0; i < T::kKeyStages; ++i) {
        shared.k_full[i].init(1);
        shared.v_full[i].init(1);
        shared.k_free[i].init(kConsumerWarps);
        shared.v_free[i].init(kConsumerWarps);
    }
    hopper::publish_barriers();
}

/// One warp fills one stage of the ring of rows: every kRowStages-th tile.
template <class T>
__device__ void gather_rows(ForwardArgs const& args, ForwardShared<T>& shared, int stage) {
    constexpr int D = T::D;
    constexpr bool kOwn = T::kOwn;
    constexpr int kLanes = D / 8, kRowsAtOnce = 32 / kLanes;  // a lane copies 16 bytes
    AttentionArgs const& a = args.attention;
    int const lane = threadIdx.x % 32;
    uint32_t to[8 / kRowsAtOnce];  // in the first eight rows; the swizzle repeats from there
#pragma unroll
    for (int j = 0; j < 8 / kRowsAtOnce; ++j)
        to[j] = hopper::shared_address(shared.q[stage]) +
                hopper::piece_offset<kRows>(j * kRowsAtOnce + lane / kLanes, lane % kLanes);
    typename T::Walk walk(a, args.heads, args.keys_stay);
    TileOfRows& rows = shared.rows[stage];
    uint32_t parity = 1;
    bool more = walk.next(stage + 1);
    for (; more; more = walk.next(T::kRowStages), parity ^= 1) {
        Work const work = walk.work();
        uint32_t entry[kRows / 32];  // read ahead, while the stage is in use
#pragma unroll
        for (int i = 0; i < kRows / 32; ++i) entry[i] = kOwn ? kNoEntry : listed_entry(a, work, i * 32 + lane);
        bool const keys_go_on = walk.goes_on();
        shared.q_free[stage].wait(parity);
#pragma unroll
        for (int i = 0; i < kRows / 32; ++i) {
            Row const row = kOwn ? own_row(a, work, i * 32 + lane) : row_of_entry(a, work, entry[i]);
            rows.at[i * 32 + lane] = kOwn ? row.at : row.slot;
#pragma unroll 1
            for (int eight = 0; eight < 32; eight += 8)
#pragma unroll
                for (int j = 0; j < 8 / kRowsAtOnce; ++j) {
                    int32_t const at = __shfl_sync(kAllLanes, row.at, eight + j * kRowsAtOnce + lane / kLanes);
                    hopper::copy_piece(to[j] + (i * 32 + eight) * hopper::kPanelRowBytes,
                                       a.q + int64_t{max(at, 0)} * D + lane % kLanes * 8, at >= 0);
                }
        }
        if (lane == 0) {
            rows.key_begin = work.block.begin;
            rows.key_tiles = (work.key_end - work.block.begin + T::kKeys - 1) / T::kKeys;
            rows.seen_by_all = kOwn ? work.block.begin + work.begin / a.group : work.block.end - 1;
            rows.past = kOwn ? work.index - work.block.first : 0;
            rows.first_slot = kOwn ? own_slot(a, work, 0) : 0;
            rows.keys_go_on = keys_go_on;
        }
        hopper::finish_copies();
        hopper::fence_shared_for_async();
        shared.q_full[stage].arrive();
    }
    shared.q_free[stage].wait(parity);
    if (lane == 0) rows.key_tiles = 0;
    shared.q_full[stage].arrive();
}

/// One warp, of which one lane talks to the copy engine.
template <class T>
__device__ void bring_keys(ForwardArgs const& args, ForwardShared<T>& shared) {
    constexpr int D = T::D, kKeys = T::kKeys;
    constexpr uint32_t kBytes = hopper::tile_bytes<kKeys, D>();
    RingPosition<T::kKeyStages> at;
    auto const bring = [&](unsigned char* to, CUtensorMap const& map, Barrier& full, int32_t head, int32_t key) {
        full.arrive_and_expect(kBytes);
        for (int panel = 0; panel < D / hopper::kPanelColumns; ++panel)
            hopper::copy_box(to + panel * hopper::panel_bytes<kKeys>(), map, full, panel * hopper::kPanelColumns, head,
                             key);
    };
    for (typename T::Walk walk(args.attention, args.heads, args.keys_stay); walk.next(1);) {
        if (walk.continues()) continue;
        Work const work = walk.work();
        for (int32_t key = work.block.begin; key < work.key_end; key += kKeys, at.advance()) {
            if (threadIdx.x % 32 != 0) continue;
            shared.k_free[at.stage].wait(at.free_parity());
            bring(shared.k[at.stage], args.k, shared.k_full[at.stage], static_cast<int32_t>(work.g), key);
            shared.v_free[at.stage].wait(at.free_parity());
            bring(shared.v[at.stage], args.v, shared.v_full[at.stage], static_cast<int32_t>(work.g), key);
        }
    }
}

/// Running maxima and sums of the lane's two rows; scaled scores are s * scale, exponentials of base 2.
template <int kKeys>
struct Softmax {
    float top[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};  ///< of this lane's columns

    /// Turns scores into weights relative to the new maximum; `kept` is what the old ones are worth.
    __device__ void absorb(float (&s)[kKeys / 2], float scale_log2, float (&kept)[2]) {
        float shift[2], added[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = top[half];
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n) most = fmaxf(most, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
            most = quad_max(most);
            kept[half] = exp2_approx((top[half] - most) * scale_log2);
            shift[half] = most * scale_log2;
            top[half] = most;
        }
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
            s[i] = exp2_approx(s[i] * scale_log2 - shift[i % 4 / 2]);
            added[i % 4 / 2] += s[i];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) sum[half] = sum[half] * kept[half] + added[half];
    }
};

/// Where a warpgroup is: a tile of rows, and which of its tiles of keys.
struct Place {
    int32_t key_begin, key_tiles, seen_by_all, past, first_slot;
    bool keys_go_on;
    int32_t at[2];
    int32_t key_tile = 0;
    uint32_t keys = 0;  ///< tiles of keys before this tile's first, in the ring's count

    __device__ bool last() const { return key_tile + 1 == key_tiles; }
    __device__ uint32_t in_ring() const { return keys + static_cast<uint32_t>(key_tile); }
};

template <class T>
class Consumer {
  public:
    __device__ Consumer(ForwardArgs const& args, ForwardShared<T>& shared, int group)
        : a_(args.attention),
          shared_(shared),
          group_(group),
          row_(group * 64 + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4)),
          scale_log2_(a_.scale * kLog2e),
          ring_(shared.visits) {}

    __device__ void run() {
        Place now = next_tile(0);
        if (now.key_tiles == 0) return;
        if constexpr (kOwn)
            for (int s = 0; s < T::kVisitStages; ++s) ring_.start(a_, own_rows(now), s);
        if (group_ == 1) pass_turn(0);
        float s[kKeys / 2], o[D / 2], kept[2];
        uint32_t weights[kKeys / 16][4];
        Softmax<kKeys> softmax, done;
        Place before{};  // whose results are still to be written; none
        VisitsOf visits;
        start_scores(s, now);
        hopper::products_wait<0>();
        finish_scores(s, now);
        softmax.absorb(s, scale_log2_, kept);
        to_weights(weights, s);
        for (;;) {
            bool const ends = now.last();
            Place then = now;
            ++then.key_tile;
            if (ends) then = next_tile(now.keys_go_on ? now.keys : now.keys + now.key_tiles);
            take_turn();
            if (then.key_tiles == 0) break;
            start_scores(s, then);
            if (kWriteLater && now.key_tile == 0 && before.key_tiles > 0) write(o, done, before, now, visits);
            start_outputs(o, weights, now);
            pass_turn(1 - group_);
            if (ends) visits = VisitsOf(a_, own_rows(now));
            hopper::products_wait<1>();
            finish_scores(s, then);
            if (ends) {
                done = softmax;
                softmax = {};
                before = now;
            }
            softmax.absorb(s, scale_log2_, kept);
            hopper::settle(softmax.sum[0] + softmax.sum[1]);  // all of this while the products run
            hopper::products_wait<0>();
            finish_outputs(o, now);
            to_weights(weights, s);
            if (ends) {
                if (!kWriteLater) write(o, done, now, then, visits);
            } else {
#pragma unroll
                for (int i = 0; i < D / 2; ++i) o[i] *= kept[i % 4 / 2];
            }
            now = then;
        }
        if (kWriteLater && now.key_tile == 0 && before.key_tiles > 0) write(o, done, before, now, visits);
        start_outputs(o, weights, now);
        if (group_ == 0) pass_turn(1);
        visits = VisitsOf(a_, own_rows(now));
        hopper::products_wait<0>();
        finish_outputs(o, now);
        Place nothing{};
        nothing.at[0] = nothing.at[1] = -1;
        write(o, softmax, now, nothing, visits);
        hopper::finish_copies();
    }

  private:
    static constexpr int D = T::D, kKeys = T::kKeys, kKeyStages = T::kKeyStages;
    static constexpr bool kOwn = T::kOwn;
    struct NoWeights {
        NoWeights() = default;
        __device__ NoWeights(AttentionArgs const&, OwnRows const&) {}
    };
    using VisitsOf = std::conditional_t<kOwn, VisitWeights, NoWeights>;

    /// Merging takes long and waits for memory, so own rows' warpgroups go as they can.
#ifdef LATER
    static constexpr bool kWriteLater = LATER;
#else
    static constexpr bool kWriteLater = !kOwn;
#endif
#ifdef TURNS
    static constexpr bool kTakeTurns = TURNS;
#else
    static constexpr bool kTakeTurns = !kOwn;
#endif
    __device__ void take_turn() {
        if constexpr (kTakeTurns) hopper::named_sync(1 + group_, 256);
    }
    __device__ static void pass_turn(int group) {
        if constexpr (kTakeTurns) hopper::named_arrive(1 + group, 256);
    }

    __device__ Place next_tile(uint32_t keys) {
        shared_.q_full[q_.stage].wait(q_.parity());
        TileOfRows const& rows = shared_.rows[q_.stage];
        return {rows.key_begin,
                rows.key_tiles,
                rows.seen_by_all,
                rows.past,
                rows.first_slot + row_ * a_.slots,
                rows.keys_go_on,
                {rows.at[row_], rows.at[row_ + 8]},
                0,
                keys};
    }
    __device__ OwnRows own_rows(Place const& place) const {
        return {{place.at[0], place.at[1]}, {place.first_slot, place.first_slot + 8 * a_.slots}, place.past};
    }
    /// This warp no longer reads what `barrier` guards.
    __device__ static void release(Barrier& barrier) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier.arrive();
    }

    __device__ void start_scores(float (&s)[kKeys / 2], Place const& at) {
        uint32_t const index = at.in_ring(), stage = index % kKeyStages;
        shared_.k_full[stage].wait(index / kKeyStages & 1);
        uint32_t const q = hopper::shared_address(shared_.q[q_.stage]) + group_ * 64 * hopper::kPanelRowBytes;
        uint32_t const k = hopper::shared_address(shared_.k[stage]);
        hopper::pin(s);
        hopper::products_begin();
#pragma unroll
        for (int step = 0; step < D / 16; ++step)
            hopper::multiply<Inner::columns, Inner::columns>(s, hopper::columns_factor<kRows>(q, 0, step),
                                                             hopper::columns_factor<kKeys>(k, 0, step), step > 0);
        hopper::products_commit();
    }
    __device__ void finish_scores(float (&s)[kKeys / 2], Place const& at) {
        hopper::pin(s);
        if (!at.keys_go_on) release(shared_.k_free[at.in_ring() % kKeyStages]);
        if (at.last()) {
            shared_.q_free[q_.stage].arrive();
            q_.advance();
        }
        int32_t const key = at.key_begin + at.key_tile * kKeys;
        if (key + kKeys - 1 <= at.seen_by_all) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // A row that is not there may see anything.
            int32_t limit = at.seen_by_all;
            if constexpr (kOwn) limit = at.at[half] < 0 ? INT_MAX : a_.query_begin + at.at[half] / a_.heads;
            int32_t const first = key + static_cast<int32_t>(threadIdx.x % 4) * 2;
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (first + n * 8 + i > limit) s[n * 4 + half * 2 + i] = -INFINITY;
        }
    }
    __device__ static void to_weights(uint32_t (&weights)[kKeys / 16][4], float const (&s)[kKeys / 2]) {
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) hopper::to_left(weights[step], s, step);
    }
    __device__ void start_outputs(float (&o)[D / 2], uint32_t const (&weights)[kKeys / 16][4], Place const& at) {
        uint32_t const index = at.in_ring(), stage = index % kKeyStages;
        shared_.v_full[stage].wait(index / kKeyStages & 1);
        uint32_t const v = hopper::shared_address(shared_.v[stage]);
        hopper::pin(o);
        hopper::products_begin();
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step)
            hopper::multiply<Inner::rows>(o, weights[step], hopper::rows_factor<kKeys>(v, 0, step),
                                          step > 0 || at.key_tile > 0);
        hopper::products_commit();
    }
    __device__ void finish_outputs(float (&o)[D / 2], Place const& at) {
        hopper::pin(o);
        if (!at.keys_go_on) release(shared_.v_free[at.in_ring() % kKeyStages]);
    }

    /// The tile's results, normalised.
    __device__ void write(float const (&o)[D / 2], Softmax<kKeys> const& softmax, Place const& tile, Place const& next,
                          VisitsOf const& visits) {
        float sum[2], lse[2];  // of base 2
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sum[half] = quad_sum(softmax.sum[half]);
            lse[half] = softmax.top[half] * scale_log2_ + log2_approx(sum[half]);
        }
        float* const lse_to = kOwn ? a_.lse_out : a_.partial_lse;
        if constexpr (kOwn) {
            float merged[D / 2];  // o itself may not change while products that wait for it are under way
            merge_visits<D>(a_, ring_, own_rows(tile), own_rows(next), visits, o, merged, sum, lse);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                write_row<D>(a_.o_out + int64_t{tile.at[half]} * D, merged, half, 1 / sum[half], tile.at[half] >= 0);
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (tile.at[half] >= 0) write_partial<D>(a_.partial, tile.at[half], o, half, 1 / sum[half]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (tile.at[half] >= 0 && threadIdx.x % 4 == 0) lse_to[tile.at[half]] = lse[half] * (1 / kLog2e);
    }

    AttentionArgs const& a_;
    ForwardShared<T>& shared_;
    int group_, row_;
    float scale_log2_;
    RingPosition<T::kRowStages> q_;
    typename T::Ring ring_;
};

template <class T>
__global__ void __launch_bounds__(kThreads, 1) hopper_forward_kernel(__grid_constant__ ForwardArgs const args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    auto& shared = hopper::dynamic_tiles<ForwardShared<T>>();
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    int const warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        hopper::give_registers_up<56>();
        int const warp = threadIdx.x / 32;
        if (warp < T::kRowStages)
            gather_rows(args, shared, warp);
        else if (warp == 3)
            bring_keys(args, shared);
    } else {
        hopper::take_registers<224>();
        Consumer<T>(args, shared, warpgroup - 1).run();
    }
#endif
}

template <class T>
void launch_tiling(Stage const& stage, Wave const& wave, AttentionArgs const& attention, int64_t tiles) {
    MobaShape const& shape = stage.plan.shape;
    auto const map = [&](bf16 const* x) {
        return hopper::rows_map(x, shape.tokens, shape.kv_heads, shape.head_dim, T::kKeys);
    };
    ForwardArgs const args{attention, map(stage.problem.k), map(stage.problem.v), static_cast<int32_t>(wave.heads),
                           !T::kOwn && shape.options.block_size <= T::kKeys * T::kKeyStages};
    int64_t const blocks = std::min(kernels::multiprocessors(), tiles);
    launch(
        {T::kOwn ? "attend_own" : "attend_chosen", blocks, 1, kThreads, sizeof(ForwardShared<T>), stage.problem.stream},
        hopper_forward_kernel<T>, args);
}

template <bool kOwn>
void launch_forward(Stage const& stage, Wave const& wave, AttentionArgs const& attention, int64_t tiles) {
    if (stage.plan.shape.head_dim == 64)
        launch_tiling<Tiling<64, kOwn>>(stage, wave, attention, tiles);
    else
        launch_tiling<Tiling<128, kOwn>>(stage, wave, attention, tiles);
}

}  // namespace

void hopper_attend_chosen(Stage const& stage, Wave const& wave) {
    launch_forward<false>(stage, wave, attention_args(stage, wave), most_listed_tiles(stage.plan, wave) * wave.heads);
}

void hopper_attend_own(Stage const& stage, Wave const& wave, bf16* o, float* lse) {
    AttentionArgs args = attention_args(stage, wave);
    args.o_out = o;
    args.lse_out = lse;
    args.tiles_per_block = tiles_per_block(stage.plan, stage.plan.shape.group(), kRows);
    launch_forward<true>(stage, wave, args, stage.plan.blocks * args.tiles_per_block * wave.heads);
}

}  // namespace perigee::moba
