// Shared memory of the dense forward and the warps that fill it.
#pragma once

#include "kernels/dense_attention/stages.h"
#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/hopper/cluster.cuh"

namespace perigee::dense {

using hopper::Barrier, hopper::kArrivalsPerWarp, hopper::RingPosition;

inline constexpr int kConsumerRows = 64;  ///< of a query tile, which a warpgroup works on

/// Two thread blocks that share keys and values as a cluster, a query tile of one head each.
enum class Pairs {
    none,
    of_heads,           ///< of the same rows
    of_heads_and_tiles  ///< of a group's heads at two tiles in a row; one pair has a head at each of them
};

template <int kHeadDim, bool kWindow, Pairs kPairsOf>
struct ForwardTiling {
    static constexpr int D = kHeadDim;
    static constexpr bool kWindowed = kWindow;
    static constexpr Pairs kPairs = kPairsOf;
    static constexpr int kCluster = kPairs == Pairs::none ? 1 : 2;                    ///< thread blocks
    static constexpr int kTilesAtOnce = kPairs == Pairs::of_heads_and_tiles ? 2 : 1;  ///< that a pair is taken from
    static constexpr uint32_t kKeysRank = 0, kValuesRank = kCluster - 1;  ///< which block of the cluster loads them
    static constexpr int kWarpgroups = D == 64 ? 3 : 2;                   ///< of consumers
    static constexpr int kThreads = 128 * (1 + kWarpgroups);
    static constexpr int kRows = kWarpgroups * kConsumerRows;
    static constexpr int kKeys = 128;
    static constexpr int kRowStages = 2;                // tiles of rows
    static constexpr int kKeyStages = D == 64 ? 4 : 2;  // tiles of keys, and of values
    static constexpr int kProducerRegisters = D == 64 ? 32 : 40, kConsumerRegisters = D == 64 ? 160 : 232;
};

struct ForwardArgs {
    Schedule schedule;  ///< its heads are pairs of heads where two share the same rows
    CUtensorMap q_map, k_map, v_map;
    bf16* o;
    float* lse;
    float scale;
    int32_t query_begin;
    int32_t heads, group;
    int32_t window;
};

/// What consumers must know of a query tile.
struct TileOfRows {
    int32_t at;         ///< the first row: its query * H + head
    int32_t row, end;   ///< the first row and the last + 1, counted from the document's beginning
    int32_t key_tiles;  ///< the last + 1 that rows see; 0: there are no more tiles
    int32_t keys;       ///< of the document
};

template <class T>
struct ForwardShared {
    unsigned char q[T::kRowStages][hopper::tile_bytes<T::kRows, T::D>()];
    unsigned char k[T::kKeyStages][hopper::tile_bytes<T::kKeys, T::D>()];
    unsigned char v[T::kKeyStages][hopper::tile_bytes<T::kKeys, T::D>()];
    TileOfRows tiles[T::kRowStages];
    Barrier q_full[T::kRowStages], q_free[T::kRowStages];
    Barrier k_full[T::kKeyStages], k_free[T::kKeyStages];
    Barrier v_full[T::kKeyStages], v_free[T::kKeyStages];
    Barrier v_here[T::kKeyStages];  ///< of values that end with their document, before consumers may see them
    hopper::Mailbox items;          ///< tile numbers, from a cluster's block 0 to block 1
};

template <class T>
__device__ void init_barriers(ForwardShared<T>& shared) {
    for (int i = 0; i < T::kRowStages; ++i) {
        shared.q_full[i].init(1);
        shared.q_free[i].init((T::kWarpgroups * 4 + 1) *
                              kArrivalsPerWarp);  // the consumers' warps and the clearing one
    }
    for (int i = 0; i < T::kKeyStages; ++i) {
        shared.k_full[i].init(1);
        shared.v_full[i].init(1);
        shared.v_here[i].init(1);
        shared.k_free[i].init(T::kCluster * T::kWarpgroups * 4 * kArrivalsPerWarp);
        shared.v_free[i].init(T::kCluster * T::kWarpgroups * 4 * kArrivalsPerWarp);
    }
    if constexpr (T::kCluster > 1) shared.items.init();
    hopper::publish_barriers();
}

/// Whether values past the document's end come with its last tile of keys. They become zeros, since what weighs nothing
/// must not count: zero times infinity would.
template <class T>
__device__ __forceinline__ bool ends_inside(int32_t key_tiles, int32_t keys) {
    return key_tiles * T::kKeys > keys;
}

/// The first KV tile that rows from `row` on see.
template <class T>
__device__ __forceinline__ int32_t first_key_tile(ForwardArgs const& args, int32_t row) {
    return T::kWindowed ? max(row + 1 - args.window, 0) / T::kKeys : 0;
}

/// What a thread block does of an item.
struct Share {
    int32_t head;
    int32_t row, end;  ///< as a tile has them; there may be no rows
    int32_t pair_end;  ///< of both thread blocks' rows, the later one: both walk the keys before it
    bool uneven;       ///< whether one thread block has later rows than the other
};

/// Of Pairs::of_heads_and_tiles. A document's tiles go two by two from its end: if their number is odd, the first one
/// has none before it. Two tiles of all heads of a group are 2 * group query tiles, the later rows first; item i of
/// `group` has numbers 2 i and 2 i + 1 of them, one for each thread block.
template <class T>
__device__ __forceinline__ Share share_of(ForwardArgs const& args, Tile const& tile, uint32_t block) {
    auto const second = static_cast<int32_t>(block);
    if constexpr (T::kTilesAtOnce == 1) {
        return {tile.head * T::kCluster + second, tile.row, tile.end, tile.end, false};
    } else {
        int32_t const length = tile.document_end - tile.begin, item = tile.head % args.group;
        int32_t const late_row = tile.row + ((length - 1) / T::kRows % 2) * T::kRows;
        int32_t const late_end = min(length, late_row + T::kRows), at = 2 * item + second;
        Share share{tile.head - item + at, late_row, late_end, late_end, 2 * item + 1 == args.group};
        if (at >= args.group) {
            share.head -= args.group;
            share.end = late_row;
            share.row = max(late_row - T::kRows, 0);
        }
        if (2 * item >= args.group) share.pair_end = late_row;
        return share;
    }
}

/// One warp; one of its lanes starts the TMA copies. It looks for the next tile while keys are being loaded.
///
/// In a cluster, both thread blocks walk the same items, each with its own query tile. One loads keys for both, the
/// other values, when the consumers of both have released the stage. The block that does not load a tile announces its
/// bytes to its own barrier as soon as the stage's previous tile is there. The bytes may land earlier: the barrier's
/// phase still waits for this arrival.
template <class T>
__device__ void bring_tiles(ForwardArgs const& args, ForwardShared<T>& shared) {
    TileWalker<T::kRows * T::kTilesAtOnce, true> walk(args.schedule);
    RingPosition<T::kRowStages> rows;
    RingPosition<T::kKeyStages> at;
    RingPosition<1> mail;
    bool const talks = threadIdx.x % 32 == 0;
    uint32_t const rank = T::kCluster > 1 ? hopper::cluster_rank() : 0;
    auto const next_tile = [&] {
        for (;;) {
            int32_t item = 0;
            if (talks && rank == 0) item = walk.take();
            if (T::kCluster > 1 && talks && rank == 0) shared.items.send(item, mail);
            if (T::kCluster > 1 && talks && rank == 1) item = shared.items.receive(mail);
            Tile const tile = walk.find(item);
            if (tile.head < 0 || share_of<T>(args, tile, 0).pair_end > 0) return tile;
        }
    };
    uint32_t block = rank;
    for (Tile tile = next_tile(), next; tile.head >= 0; tile = next, rows.advance()) {
        Share const mine = share_of<T>(args, tile, block);
        if (mine.uneven) block ^= 1;  // later rows are more work
        int32_t const key_tiles = (mine.pair_end + T::kKeys - 1) / T::kKeys, keys = tile.document_end - tile.begin;
        int32_t const first = first_key_tile<T>(args, tile.row);
        if (talks) {
            int32_t const query = tile.begin + mine.row - args.query_begin;
            Barrier& full = shared.q_full[rows.stage];
            shared.q_free[rows.stage].wait(rows.free_parity());
            shared.tiles[rows.stage] = {query * args.heads + mine.head, mine.row, mine.end, key_tiles, keys};
            full.arrive_and_expect(hopper::tile_bytes<T::kRows, T::D>());
            hopper::copy_tile<T::kRows, T::D, 1>(shared.q[rows.stage], args.q_map, full, mine.head, query,
                                                 hopper::Keep::evict_first);
        }
        int32_t const kv_head = mine.head / args.group;
        bool const ends = ends_inside<T>(key_tiles, keys);
#pragma unroll 1
        for (int32_t i = first; i < key_tiles; ++i, at.advance()) {
            if (talks) {
                int32_t const key = tile.begin + i * T::kKeys;
                // Bytes are counted at `landed`: at `full`, or at v_here, after which the clearing warp completes
                // `full`.
                auto const bring = [&](uint32_t loader, unsigned char* to, CUtensorMap const& map, Barrier& free,
                                       Barrier& full, Barrier& landed) {
                    bool const loads = T::kCluster == 1 || rank == loader;
                    (loads ? free : full).wait(at.free_parity());
                    landed.arrive_and_expect(hopper::tile_bytes<T::kKeys, T::D>());
                    if (loads) hopper::copy_tile<T::kKeys, T::D, 1, T::kCluster>(to, map, landed, kv_head, key);
                };
                Barrier &k_full = shared.k_full[at.stage], &v_full = shared.v_full[at.stage];
                bring(T::kKeysRank, shared.k[at.stage], args.k_map, shared.k_free[at.stage], k_full, k_full);
                bring(T::kValuesRank, shared.v[at.stage], args.v_map, shared.v_free[at.stage], v_full,
                      ends && i == key_tiles - 1 ? shared.v_here[at.stage] : v_full);
            }
            __syncwarp();
            if (i == max(key_tiles - 2, first)) next = next_tile();
        }
    }
    if (talks) {
        shared.q_free[rows.stage].wait(rows.free_parity());
        shared.tiles[rows.stage].key_tiles = 0;
        shared.q_full[rows.stage].arrive();
    }
}

/// One warp that clears values past their document's end.
template <class T>
__device__ void clear_values(ForwardArgs const& args, ForwardShared<T>& shared) {
    RingPosition<T::kRowStages> rows;
    uint32_t first = 0, parities = 0;  // the ring's position of a tile's first values; one bit for each stage
    for (;; rows.advance()) {
        shared.q_full[rows.stage].wait(rows.parity());
        int32_t const key_tiles = shared.tiles[rows.stage].key_tiles, keys = shared.tiles[rows.stage].keys;
        uint32_t const count = static_cast<uint32_t>(key_tiles - first_key_tile<T>(args, shared.tiles[rows.stage].row));
        __syncwarp();
        if (kArrivalsPerWarp > 1 || threadIdx.x % 32 == 0) shared.q_free[rows.stage].arrive();
        if (key_tiles == 0) return;
        uint32_t const stage = (first + count - 1) % T::kKeyStages;
        first += count;
        if (!ends_inside<T>(key_tiles, keys)) continue;
        shared.v_here[stage].wait(parities >> stage & 1);
        parities ^= 1u << stage;
        hopper::clear_rows<T::kKeys, T::D>(shared.v[stage], keys - (key_tiles - 1) * T::kKeys);
        if (threadIdx.x % 32 == 0) shared.v_full[stage].arrive();
    }
}

}  // namespace perigee::dense
