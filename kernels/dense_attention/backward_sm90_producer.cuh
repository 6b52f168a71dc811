// Shared memory of the dense backward and the warps that fill it.
#pragma once

#include "kernels/dense_attention/backward_sm90.cuh"

namespace perigee::dense {

template <int D>
struct BackwardShared {
    using T = BackwardTiling<D>;
    unsigned char k[hopper::tile_bytes<kKvTile, D>()], v[hopper::tile_bytes<kKvTile, D>()];
    unsigned char q[T::kStages][hopper::tile_bytes<T::kRows, D>()];
    unsigned char d_o[T::kStages][hopper::tile_bytes<T::kRows, D>()];
    unsigned char ds[2][hopper::tile_bytes<T::kRows, kKvTile>()];
    float4 dq[T::kSums];
    alignas(16) float stats[T::kStages][2][T::kRows];  ///< as BackwardArgs::stats
    Tile item;
    // Who arrives at a barrier, and who waits for what. A tile that its document ends in passes clear_ends() first.
    // clang-format off
    //   barrier      arrives                 waits
    //   item_wanted  bring_tiles()           find_items(): the item's copies are queued, look for the next
    //   item_known   find_items()            the other producers: `item`
    //   keys_here    TMA                     clear_ends(): k, v of a tile that its document ends in
    //   keys_full    TMA or clear_ends()     consumers: k, v and `item`
    //   keys_free    all but find_items()    find_items(): nobody reads `item`, k, v any longer
    //   rows_here    TMA                     clear_ends(): q, do of a tile that its document ends in
    //   rows_full    TMA, also clear_ends()  consumers: q, do, stats
    //   rows_free    consumers               bring_rows()
    //   dq_full      consumers               add_query_gradients()
    //   dq_free      add_query_gradients()   consumers
    // clang-format on
    Barrier item_wanted, item_known, keys_full, keys_free, keys_here, dq_full, dq_free;
    Barrier rows_full[T::kStages], rows_free[T::kStages], rows_here[T::kStages];
};

template <int D>
__device__ void init_barriers(BackwardShared<D>& shared) {
    shared.item_wanted.init(1);
    shared.item_known.init(1);
    shared.keys_full.init(1);
    shared.keys_here.init(1);
    shared.keys_free.init((kConsumers / 32 + 2) * kArrivalsPerWarp +
                          1);  // consumers, two producer warps, the TMA thread
    shared.dq_full.init(kConsumers / 32 * kArrivalsPerWarp);
    shared.dq_free.init(1);
    for (int i = 0; i < BackwardTiling<D>::kStages; ++i) {
        shared.rows_full[i].init(1);
        shared.rows_here[i].init(1);
        shared.rows_free[i].init(kConsumers / 32 * kArrivalsPerWarp);
    }
    hopper::publish_barriers();
}

/// The row tiles that see a KV tile, from the diagonal's to the document's last. A window ends them earlier.
template <int D, bool kWindowed>
struct RowTiles {
    using T = BackwardTiling<D>;
    int32_t first, count;
    int32_t index;      ///< of the first, among all row tiles of a head
    bool whole = true;  ///< whether the document's last row is among them

    __device__ RowTiles(Tile const& item, int32_t window)
        : first(item.row / T::kRows), count((item.document_end - item.begin + T::kRows - 1) / T::kRows - first) {
        if (kWindowed) {
            int32_t const seen = (item.row + kKvTile - 2 + window) / T::kRows + 1 - first;
            whole = seen >= count;
            count = min(count, seen);
        }
        index = (item.index - item.row / kKvTile) * T::kTilesOfKv + first;
    }
};

/// The steps of a work item: a row tile of a query head each. Where KV tiles add in any order, only consumers take it:
/// bring_rows() and add_in_any_order() have two loops in the same order, with which ptxas makes the backward 1% faster.
template <bool kOrdered>
struct Step;

/// Where KV tiles add to dq in any order: head by head, each from the diagonal's row tile to the last. KV tiles that
/// are at work at the same time then add to different row tiles.
template <>
struct Step<false> {
    int32_t tile = 0;  ///< row tiles past the first
    int32_t heads;     ///< query heads of the item, from this one on

    __device__ Step(int32_t, int32_t item_heads) : heads(item_heads) {}
    __device__ bool any() const { return heads > 0; }
    __device__ void next(int32_t tiles, int32_t) {
        if (++tile == tiles) tile = 0, --heads;
    }
};

/// Where they take turns: row tile by row tile from the last, each for all heads. Without a window all KV tiles begin
/// with the same row tile, and each then stays one step behind the KV tile before it.
template <>
struct Step<true> {
    int32_t tile;      ///< row tiles past the first
    int32_t head = 0;  ///< of the group

    __device__ Step(int32_t tiles, int32_t) : tile(tiles - 1) {}
    __device__ bool any() const { return tile >= 0; }
    __device__ void next(int32_t, int32_t group) {
        if (++head == group) head = 0, --tile;
    }
};

/// Query heads of an item in any order, of those of the pass: this one and the `item_heads` - 1 after it.
__device__ __forceinline__ int32_t first_head(BackwardArgs const& a, Tile const& item) {
    return item.head * a.group + item.part * a.item_heads;
}

/// Rows of q and do from `token` on, of query head `head` of all; stats of row tile `tile`, counted over all heads of
/// the pass, 32 bits of it where it is kept over a loop. `partial`: some of the rows lie past the document's end, so
/// clear_ends() gets q and do first. Consumers always wait for the stats themselves.
template <int D>
__device__ __forceinline__ void copy_rows(BackwardArgs const& a, BackwardShared<D>& shared, int stage, bool partial,
                                          int32_t head, auto tile, int32_t token) {
    using T = BackwardTiling<D>;
    constexpr uint32_t kBytes = 2 * hopper::tile_bytes<T::kRows, D>();
    Barrier& full = shared.rows_full[stage];
    Barrier& here = partial ? shared.rows_here[stage] : full;
    // Announced before clear_ends() can arrive at `full`: otherwise the phase could complete without the stats.
    if (partial) full.expect(T::kStatsBytes);
    here.arrive_and_expect(partial ? kBytes : kBytes + T::kStatsBytes);
    hopper::copy_tile<T::kRows, D, 1>(shared.q[stage], a.q_map, here, head, token);
    hopper::copy_bytes(shared.stats[stage], a.stats + int64_t{tile} * (2 * T::kRows), T::kStatsBytes, full);
    hopper::copy_tile<T::kRows, D, 1>(shared.d_o[stage], a.do_map, here, head, token);
}
template <int D, bool kOrdered, bool kWindowed>
__device__ void bring_rows(BackwardArgs const& a, BackwardShared<D>& shared,
                           RingPosition<BackwardTiling<D>::kStages>& at) {
    using T = BackwardTiling<D>;
    Tile const& item = shared.item;  // not in registers, which are few
    RowTiles<D, kWindowed> const tiles(item, a.window);
    if constexpr (kOrdered) {
#pragma unroll 1
        for (Step<true> step(tiles.count, a.group); step.any(); step.next(tiles.count, a.group), at.advance()) {
            int const stage = at.stage;
            int32_t const head = item.head * a.group + step.head, head_of_all = a.first_kv_head * a.group + head;
            int64_t const tile = int64_t{head} * a.row_tiles + tiles.index + step.tile;
            int32_t const token = item.begin + (tiles.first + step.tile) * T::kRows;
            bool const ends = tiles.whole && step.tile == tiles.count - 1;  // the document does, in this row tile
            shared.rows_free[stage].wait(at.free_parity());
            bool const partial = ends && (item.document_end - item.begin) % T::kRows != 0;
            copy_rows(a, shared, stage, partial, head_of_all, tile, token);
        }
    } else {
        int32_t const first = first_head(a, item);
        for (int32_t head = first; head < first + a.item_heads; ++head) {
            int32_t tile = head * a.row_tiles + tiles.index;
            int32_t token = item.begin + tiles.first * T::kRows;
            int32_t const head_of_all = a.first_kv_head * a.group + head;
#pragma unroll 1
            for (int32_t i = 0; i < tiles.count; ++i, at.advance()) {
                int const stage = at.stage;
                shared.rows_free[stage].wait(at.free_parity());
                bool const partial =
                    tiles.whole && i == tiles.count - 1 && (item.document_end - item.begin) % T::kRows != 0;
                copy_rows(a, shared, stage, partial, head_of_all, tile, token);
                token += T::kRows;
                ++tile;
            }
        }
    }
}

/// One warp that looks for work items, each when the rows of the one before are on their way.
template <int D>
__device__ void find_items(BackwardArgs const& a, BackwardShared<D>& shared) {
    TileWalker<kKvTile, false> walk(a.schedule);
    for (uint32_t n = 0;; ++n) {
        shared.item_wanted.wait((n & 1) ^ 1);
        Tile const item = walk.next();
        if (threadIdx.x % 32 == 0) {
            shared.keys_free.wait((n & 1) ^ 1);
            shared.item = item;
            shared.item_known.arrive();
        }
        __syncwarp();
        if (item.head < 0) return;
    }
}

/// One thread, which starts TMA copies.
template <int D, bool kOrdered, bool kWindowed>
__device__ void bring_tiles(BackwardArgs const& a, BackwardShared<D>& shared) {
    RingPosition<BackwardTiling<D>::kStages> at;
    Tile const& item = shared.item;
    for (uint32_t n = 0;; ++n) {
        shared.item_known.wait(n & 1);
        if (item.head < 0) break;
        Barrier& full = item.end - item.row < kKvTile ? shared.keys_here : shared.keys_full;
        full.arrive_and_expect(2 * sizeof(shared.k));
        int32_t const head = a.first_kv_head + item.head, key = item.begin + item.row;
        hopper::copy_tile<kKvTile, D, 1>(shared.k, a.k_map, full, head, key);
        hopper::copy_tile<kKvTile, D, 1>(shared.v, a.v_map, full, head, key);
        bring_rows<D, kOrdered, kWindowed>(a, shared, at);
        shared.item_wanted.arrive();
        shared.keys_free.arrive();
    }
    shared.keys_full.arrive();
}

// The first KV tile that adds to a row tile's dq stores its part, so that nothing need be zero before.
// BackwardArgs::turns tells the others, between operations of TMA, hence the fences.
__device__ __forceinline__ int32_t read_turns(int32_t const* turns) {
    int32_t now;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\nfence.proxy.async.global;" : "=r"(now) : "l"(turns) : "memory");
    return now;
}
/// Nobody waits for ever. In order, a KV tile waits for the one before it, whose item was taken earlier; thread blocks
/// take items in that order and finish one before the next, so the earliest unfinished item waits for no other. In any
/// order it waits for a KV tile that has claimed, and that one waits for its own thread block alone.
__device__ __forceinline__ void await_turn(int32_t const* turns, int32_t turn) {
    while (read_turns(turns) != turn) {
    }
}
__device__ __forceinline__ void pass_turn(int32_t* turns, int32_t next) {
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.s32 [%0], %1;" ::"l"(turns), "r"(next) : "memory");
}
/// Where KV tiles add in any order: 0 makes this one the first, -1 says that another is, 1 that its part is there.
__device__ __forceinline__ int32_t claim(int32_t* turns) {
    int32_t before;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], 0, -1;\nfence.proxy.async.global;"
                 : "=r"(before)
                 : "l"(turns)
                 : "memory");
    return before;
}

/// Adds the dq of each step of an item; the first KV tile that comes to a row tile stores its part. `count`: steps so
/// far.
template <int D, bool kWindowed>
__device__ __forceinline__ void add_in_any_order(BackwardArgs const& a, BackwardShared<D>& shared, Tile const& item,
                                                 uint32_t& count) {
    using T = BackwardTiling<D>;
    RowTiles<D, kWindowed> const tiles(item, a.window);
    int32_t const first_of_item = first_head(a, item);
    for (int32_t head = first_of_item; head < first_of_item + a.item_heads; ++head) {
        int64_t at = int64_t{head} * a.row_tiles + tiles.index;
        int32_t before = claim(a.turns + at);
#pragma unroll 1
        for (int32_t i = 0; i < tiles.count; ++i, ++count, ++at) {
            int32_t* const turns = a.turns + at;
            shared.dq_full.wait(count & 1);
            hopper::fence_shared_for_async();  // here: a consumer's fence would wait for that consumer's stores
            if (before < 0) await_turn(turns, 1);
            bool const first = before == 0;
            if (first)
                hopper::store_floats(a.sums + at * T::kSums, shared.dq, sizeof shared.dq);
            else
                hopper::add_floats(a.sums + at * T::kSums, shared.dq, sizeof shared.dq);
            hopper::add_commit();
            // Claims while TMA reads: the claim and the read, one after the other, would take as long as a step. Until
            // its part is there, this KV tile waits for its own thread block alone: nobody waits in a circle.
            if (i + 1 < tiles.count) before = claim(turns + 1);
            hopper::add_wait_read();
            shared.dq_free.arrive();
            if (first) {
                hopper::add_wait();
                pass_turn(turns, 1);
            }
        }
    }
}
/// The same, but KV tiles take turns at a row tile, from the first to the last.
template <int D, bool kWindowed>
__device__ __forceinline__ void add_in_turn(BackwardArgs const& a, BackwardShared<D>& shared, Tile const& item,
                                            uint32_t& count) {
    using T = BackwardTiling<D>;
    RowTiles<D, kWindowed> const tiles(item, a.window);
#pragma unroll 1
    for (Step<true> step(tiles.count, a.group); step.any(); ++count) {
        int64_t const at = int64_t{item.head * a.group + step.head} * a.row_tiles + tiles.index + step.tile;
        float4* const sum = a.sums + at * T::kSums;
        int32_t* const turns = a.turns + at;
        int32_t turn = item.row / kKvTile;  // KV tiles before this one that see the row tile
        if constexpr (kWindowed) turn -= max((tiles.first + step.tile) * T::kRows + 1 - a.window, 0) / kKvTile;
        shared.dq_full.wait(count & 1);
        hopper::fence_shared_for_async();  // here: a consumer's fence would wait for that consumer's stores
        await_turn(turns, turn);
        if (turn == 0)
            hopper::store_floats(sum, shared.dq, sizeof shared.dq);
        else
            hopper::add_floats(sum, shared.dq, sizeof shared.dq);
        hopper::add_commit();
        step.next(tiles.count, a.group);
        hopper::add_wait_read();
        shared.dq_free.arrive();
        hopper::add_wait();
        pass_turn(turns, turn + 1);
    }
}

/// One warp that adds the dq of each row tile to its sum.
template <int D, bool kOrdered, bool kWindowed>
__device__ void add_query_gradients(BackwardArgs const& a, BackwardShared<D>& shared) {
    bool const talks = threadIdx.x % 32 == 0;
    uint32_t count = 0;
    for (uint32_t n = 0;; ++n) {
        shared.item_known.wait(n & 1);
        Tile const item = shared.item;
        __syncwarp();
        if (talks || kArrivalsPerWarp > 1) shared.keys_free.arrive();
        if (item.head < 0) break;
        if (!talks) continue;
        if constexpr (kOrdered)
            add_in_turn<D, kWindowed>(a, shared, item, count);
        else
            add_in_any_order<D, kWindowed>(a, shared, item, count);
    }
    if (talks) hopper::add_wait();
}

/// One warp that clears what lies past a document's end: it weighs nothing, but zero times infinity would count.
template <int D, bool kOrdered, bool kWindowed>
__device__ void clear_ends(BackwardArgs const& a, BackwardShared<D>& shared) {
    using T = BackwardTiling<D>;
    // first: step at which the item, in any order the head, begins; parities: of rows_here, a bit for each stage
    uint32_t keys_parity = 0, first = 0, parities = 0;
    bool const arrives = threadIdx.x % 32 == 0;
    for (uint32_t n = 0;; ++n) {
        shared.item_known.wait(n & 1);
        Tile const item = shared.item;
        __syncwarp();
        if (item.head < 0) return;
        if (int32_t const keys = item.end - item.row; keys < kKvTile) {
            shared.keys_here.wait(keys_parity);
            keys_parity ^= 1;
            hopper::clear_rows<kKvTile, D>(shared.k, keys);
            hopper::clear_rows<kKvTile, D>(shared.v, keys);
            if (arrives) shared.keys_full.arrive();
        }
        RowTiles<D, kWindowed> const tiles(item, a.window);
        int32_t const rows = (item.document_end - item.begin) % T::kRows;
        for (int32_t r = 0; r < a.item_heads; ++r) {
            // The step in which the document ends.
            uint32_t const stage =
                (kOrdered ? first + static_cast<uint32_t>(r) : first + static_cast<uint32_t>(tiles.count) - 1) %
                T::kStages;
            if (!kOrdered) first += static_cast<uint32_t>(tiles.count);
            if (rows == 0 || !tiles.whole) continue;
            shared.rows_here[stage].wait(parities >> stage & 1);
            parities ^= 1u << stage;
            hopper::clear_rows<T::kRows, D>(shared.q[stage], rows);
            hopper::clear_rows<T::kRows, D>(shared.d_o[stage], rows);
            if (arrives) shared.rows_full[stage].arrive();
        }
        if (kOrdered) first += static_cast<uint32_t>(a.item_heads * tiles.count);
        if (arrives || kArrivalsPerWarp > 1) shared.keys_free.arrive();
    }
}

}  // namespace perigee::dense
