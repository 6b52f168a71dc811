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

constexpr int kRows = 128;     // of a tile
constexpr int kKeys = 128;     // of a tile
constexpr int kRowStages = 3;  // tiles of rows in shared memory; each has its own gathering warp
constexpr int kThreads = 3 * 128;
constexpr int kConsumerWarps = 8;

template <int D>
constexpr int kKeyStages = D == 64 ? 4 : 2;  // tiles of keys, and of values, in shared memory

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
    bool keys_go_on;      ///< the next tile has the same keys
};

template <int D>
struct ForwardShared {
    unsigned char q[kRowStages][hopper::tile_bytes<kRows, D>()];
    unsigned char k[kKeyStages<D>][hopper::tile_bytes<kKeys, D>()];
    unsigned char v[kKeyStages<D>][hopper::tile_bytes<kKeys, D>()];
    TileOfRows rows[kRowStages];
    Barrier q_full[kRowStages], q_free[kRowStages];
    Barrier k_full[kKeyStages<D>], k_free[kKeyStages<D>];
    Barrier v_full[kKeyStages<D>], v_free[kKeyStages<D>];
};

template <bool kOwn>
using Walk = std::conditional_t<kOwn, OwnWalk<kRows>, ListedWalk<kRows>>;

template <int D>
__device__ void init_barriers(ForwardShared<D>& shared) {
    for (int i = 0; i < kRowStages; ++i) {
        shared.q_full[i].init(32);
        shared.q_free[i].init(kConsumerWarps);
    }
    for (int i = 0; i < kKeyStages<D>; ++i) {
        shared.k_full[i].init(1);
        shared.v_full[i].init(1);
        shared.k_free[i].init(kConsumerWarps);
        shared.v_free[i].init(kConsumerWarps);
    }
    hopper::publish_barriers();
}

/// One warp fills one stage of the ring of rows: every kRowStages-th tile.
template <int D, bool kOwn>
__device__ void gather_rows(ForwardArgs const& args, ForwardShared<D>& shared, int stage) {
    constexpr int kLanes = D / 8, kRowsAtOnce = 32 / kLanes;  // a lane copies 16 bytes
    AttentionArgs const& a = args.attention;
    int const lane = threadIdx.x % 32;
    uint32_t to[8 / kRowsAtOnce];  // in the first eight rows; the swizzle repeats from there
#pragma unroll
    for (int j = 0; j < 8 / kRowsAtOnce; ++j)
        to[j] = hopper::shared_address(shared.q[stage]) +
                hopper::piece_offset<kRows>(j * kRowsAtOnce + lane / kLanes, lane % kLanes);
    Walk<kOwn> walk(a, args.heads, args.keys_stay);
    TileOfRows& rows = shared.rows[stage];
    uint32_t parity = 1;
    bool more = walk.next(stage + 1);
    for (; more; more = walk.next(kRowStages), parity ^= 1) {
        Work const work = walk.work();
        Row row[kRows / 32];
#pragma unroll
        for (int i = 0; i < kRows / 32; ++i) row[i] = row_of<kOwn>(a, work, i * 32 + lane);
        bool const keys_go_on = walk.goes_on();
        shared.q_free[stage].wait(parity);
#pragma unroll
        for (int i = 0; i < kRows / 32; ++i) {
            rows.at[i * 32 + lane] = kOwn ? row[i].at : row[i].slot;
#pragma unroll 1
            for (int eight = 0; eight < 32; eight += 8)
#pragma unroll
                for (int j = 0; j < 8 / kRowsAtOnce; ++j) {
                    int32_t const at = __shfl_sync(kAllLanes, row[i].at, eight + j * kRowsAtOnce + lane / kLanes);
                    hopper::copy_piece(to[j] + (i * 32 + eight) * hopper::kPanelRowBytes,
                                       a.q + int64_t{max(at, 0)} * D + lane % kLanes * 8, at >= 0);
                }
        }
        if (lane == 0) {
            rows.key_begin = work.block.begin;
            rows.key_tiles = (work.key_end - work.block.begin + kKeys - 1) / kKeys;
            rows.seen_by_all = kOwn ? work.block.begin + work.begin / a.group : work.block.end - 1;
            rows.past = kOwn ? work.index - work.block.first : 0;
            rows.keys_go_on = keys_go_on;
        }
        hopper::finish_copies();
        hopper::fence_shared_for_async();
        shared.q_full[stage].arrive();
    }
    shared.q_free[stage].wait(parity);
    rows.key_tiles = 0;
    shared.q_full[stage].arrive();
}

/// One warp, of which one lane talks to the copy engine.
template <int D, bool kOwn>
__device__ void bring_keys(ForwardArgs const& args, ForwardShared<D>& shared) {
    constexpr uint32_t kBytes = hopper::tile_bytes<kKeys, D>();
    RingPosition<kKeyStages<D>> at;
    auto const bring = [&](unsigned char* to, CUtensorMap const& map, Barrier& full, int32_t head, int32_t key) {
        full.arrive_and_expect(kBytes);
        for (int panel = 0; panel < D / hopper::kPanelColumns; ++panel)
            hopper::copy_box(to + panel * hopper::panel_bytes<kKeys>(), map, full, panel * hopper::kPanelColumns, head,
                             key);
    };
    for (Walk<kOwn> walk(args.attention, args.heads, args.keys_stay); walk.next(1);) {
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
struct Softmax {
    float top[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};  ///< of this lane's columns

    /// Turns scores into weights relative to the new maximum; `kept` is what the old ones are worth.
    __device__ void absorb(float (&s)[kKeys / 2], float scale_log2, float (&kept)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = top[half];
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n) most = fmaxf(most, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
            most = quad_max(most);
            kept[half] = exp2_approx((top[half] - most) * scale_log2);
            float const shift = most * scale_log2;
            top[half] = most;
            float added = 0;
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
                for (int i = n * 4 + half * 2; i < n * 4 + half * 2 + 2; ++i) {
                    s[i] = exp2_approx(s[i] * scale_log2 - shift);
                    added += s[i];
                }
            sum[half] = sum[half] * kept[half] + added;
        }
    }
};

/// Where a warpgroup is: a tile of rows, and which of its tiles of keys.
struct Place {
    int32_t key_begin, key_tiles, seen_by_all, past;
    bool keys_go_on;
    int32_t at[2];
    int32_t key_tile = 0;
    uint32_t keys = 0;  ///< tiles of keys before this tile's first, in the ring's count

    __device__ bool last() const { return key_tile + 1 == key_tiles; }
    __device__ uint32_t in_ring() const { return keys + static_cast<uint32_t>(key_tile); }
};

template <int D, bool kOwn>
class Consumer {
  public:
    __device__ Consumer(ForwardArgs const& args, ForwardShared<D>& shared, int group)
        : a_(args.attention),
          shared_(shared),
          group_(group),
          row_(group * 64 + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4)),
          scale_log2_(a_.scale * kLog2e) {}

    __device__ void run() {
        Place now = next_tile(0);
        if (now.key_tiles == 0) return;
        if (group_ == 1) hopper::named_arrive(turn(0), 256);
        float s[kKeys / 2], o[D / 2], kept[2];
        uint32_t weights[kKeys / 16][4];
        Softmax softmax;
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
            hopper::named_sync(turn(group_), 256);
            if (then.key_tiles == 0) break;
            start_scores(s, then);
            start_outputs(o, weights, now);
            hopper::named_arrive(turn(1 - group_), 256);
            hopper::products_wait<1>();
            finish_scores(s, then);
            Softmax const done = softmax;
            if (ends) softmax = {};
            softmax.absorb(s, scale_log2_, kept);
            hopper::products_wait<0>();
            finish_outputs(o, now);
            to_weights(weights, s);
            if (ends) {
                write(o, done, now);
            } else {
#pragma unroll
                for (int i = 0; i < D / 2; ++i) o[i] *= kept[i % 4 / 2];
            }
            now = then;
        }
        start_outputs(o, weights, now);
        if (group_ == 0) hopper::named_arrive(turn(1), 256);
        hopper::products_wait<0>();
        finish_outputs(o, now);
        write(o, softmax, now);
    }

  private:
    __device__ static int turn(int group) { return 1 + group; }

    __device__ Place next_tile(uint32_t keys) {
        shared_.q_full[q_.stage].wait(q_.parity());
        TileOfRows const& rows = shared_.rows[q_.stage];
        return {rows.key_begin,
                rows.key_tiles,
                rows.seen_by_all,
                rows.past,
                rows.keys_go_on,
                {rows.at[row_], rows.at[row_ + 8]},
                0,
                keys};
    }
    /// This warp no longer reads what `barrier` guards.
    __device__ static void release(Barrier& barrier) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier.arrive();
    }

    __device__ void start_scores(float (&s)[kKeys / 2], Place const& at) {
        uint32_t const index = at.in_ring(), stage = index % kKeyStages<D>;
        shared_.k_full[stage].wait(index / kKeyStages<D> & 1);
        uint32_t const q = hopper::shared_address(shared_.q[q_.stage]), k = hopper::shared_address(shared_.k[stage]);
        hopper::pin(s);
        hopper::products_begin();
#pragma unroll
        for (int step = 0; step < D / 16; ++step)
            hopper::multiply<Inner::columns, Inner::columns>(s, hopper::columns_factor<kRows>(q, group_ * 64, step),
                                                             hopper::columns_factor<kKeys>(k, 0, step), step > 0);
        hopper::products_commit();
    }
    __device__ void finish_scores(float (&s)[kKeys / 2], Place const& at) {
        hopper::pin(s);
        if (!at.keys_go_on) release(shared_.k_free[at.in_ring() % kKeyStages<D>]);
        if (at.last()) {
            release(shared_.q_free[q_.stage]);
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
        uint32_t const index = at.in_ring(), stage = index % kKeyStages<D>;
        shared_.v_full[stage].wait(index / kKeyStages<D> & 1);
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
        if (!at.keys_go_on) release(shared_.v_free[at.in_ring() % kKeyStages<D>]);
    }

    /// The tile's results, normalised.
    __device__ void write(float (&o)[D / 2], Softmax const& softmax, Place const& tile) {
        float sum[2], lse[2];  // of base 2
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sum[half] = quad_sum(softmax.sum[half]);
            lse[half] = softmax.top[half] * scale_log2_ + log2_approx(sum[half]);
        }
        if constexpr (kOwn)
            if (a_.slots > 0) merge_visits<D>(a_, tile.at, tile.past, o, sum, lse);
        float* const lse_to = kOwn ? a_.lse_out : a_.partial_lse;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int32_t const at = tile.at[half];
            if constexpr (kOwn)
                write_row<D>(a_.o_out + int64_t{at} * D, o, half, 1 / sum[half], at >= 0);
            else if (at >= 0)
                write_partial<D>(a_.partial, at, o, half, 1 / sum[half]);
            if (at >= 0 && threadIdx.x % 4 == 0) lse_to[at] = lse[half] * (1 / kLog2e);
        }
    }

    AttentionArgs const& a_;
    ForwardShared<D>& shared_;
    int group_, row_;
    float scale_log2_;
    RingPosition<kRowStages> q_;
};

template <int D, bool kOwn>
__global__ void __launch_bounds__(kThreads, 1) hopper_forward_kernel(__grid_constant__ ForwardArgs const args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    auto& shared = hopper::dynamic_tiles<ForwardShared<D>>();
    if (threadIdx.x == 0) init_barriers<D>(shared);
    __syncthreads();
    int const warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        hopper::give_registers_up<40>();
        int const warp = threadIdx.x / 32;
        if (warp < kRowStages)
            gather_rows<D, kOwn>(args, shared, warp);
        else
            bring_keys<D, kOwn>(args, shared);
    } else {
        hopper::take_registers<232>();
        Consumer<D, kOwn>(args, shared, warpgroup - 1).run();
    }
#endif
}

template <bool kOwn>
void launch_hopper(Stage const& stage, Wave const& wave, AttentionArgs const& attention, int64_t tiles) {
    MobaShape const& shape = stage.plan.shape;
    auto const map = [&](bf16 const* x) {
        return hopper::rows_map(x, shape.tokens, shape.kv_heads, shape.head_dim, kKeys);
    };
    auto const start = [&]<int D>() {
        ForwardArgs const args{attention, map(stage.problem.k), map(stage.problem.v), static_cast<int32_t>(wave.heads),
                               !kOwn && shape.options.block_size <= kKeys * kKeyStages<D>};
        int64_t const blocks = std::min(kernels::multiprocessors(), tiles);
        launch({kOwn ? "attend_own" : "attend_chosen", blocks, 1, kThreads, sizeof(ForwardShared<D>),
                stage.problem.stream},
               hopper_forward_kernel<D, kOwn>, args);
    };
    if (shape.head_dim == 64)
        start.template operator()<64>();
    else
        start.template operator()<128>();
}

}  // namespace

void hopper_attend_chosen(Stage const& stage, Wave const& wave) {
    launch_hopper<false>(stage, wave, attention_args(stage, wave), most_listed_tiles(stage.plan, wave) * wave.heads);
}

void hopper_attend_own(Stage const& stage, Wave const& wave, bf16* o, float* lse) {
    AttentionArgs args = attention_args(stage, wave);
    args.o_out = o;
    args.lse_out = lse;
    args.tiles_per_block = tiles_per_block(stage.plan, stage.plan.shape.group(), kRows);
    launch_hopper<true>(stage, wave, args, stage.plan.blocks * args.tiles_per_block * wave.heads);
}

}  // namespace perigee::moba
