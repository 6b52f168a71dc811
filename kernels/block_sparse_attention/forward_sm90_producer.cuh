// Shared memory of the sm90 forward and the warps that fill it: rings of gathered rows, keys and values.
#pragma once

#include <type_traits>

#include "kernels/block_sparse_attention/forward_sm90_partials.cuh"
#include "kernels/hopper/bulk_copy.cuh"

namespace perigee::block_sparse {

using hopper::Barrier;
using hopper::RingPosition;

inline constexpr int kConsumerRows = 64;  ///< of a tile, which a warpgroup of consumers works on

/// Whose rows meet which keys.
enum class Part {
    short_blocks,  ///< routed rows, all keys of a block in one tile: three warpgroups cover each other's waiting
    long_blocks,   ///< routed rows, many tiles of keys
    local  ///< half a block, then partial results to merge: small tiles, which waste less beyond the diagonal and
           ///< leave room in shared memory to read those ahead
};

template <int kHeadDim, Part kPart>
struct ForwardTiling {
    static constexpr int D = kHeadDim;
    static constexpr bool kLocal = kPart == Part::local, kShort = kPart == Part::short_blocks;
    static constexpr int kWarpgroups = kShort ? 3 : 2;  // warpgroups of consumers; each has a gathering warp
    static constexpr int kThreads = 128 * (1 + kWarpgroups);
    static constexpr int kRows = kWarpgroups * kConsumerRows;
    static constexpr int kKeys = kLocal ? 64 : kShortBlock;          // of a tile
    static constexpr int kRowStages = 2;                             // tiles of rows
    static constexpr int kKeyStages = kLocal ? 3 : D == 64 ? 4 : 2;  // tiles of keys, and of values
    static constexpr int kPartialStages = kLocal ? 2 : 0;            // slots of partial results

    using Scheduler = std::conditional_t<kLocal, LocalScheduler<kRows>, RoutedScheduler<kRows>>;
    using Ring = PartialRing<D, kPartialStages>;
};

struct ForwardArgs : AttentionArgs {
    CUtensorMap k_map, v_map;
    bool keys_stay;  ///< all keys of a block fit into the ring: tiles of one block follow each other and share them
};

/// What a warpgroup must know of its rows of a tile.
struct ConsumerRows {
    int32_t at[kConsumerRows];  ///< where the result goes: slot of a routed row, row of q of a local one; -1: none
    int32_t key_begin;          ///< as tokens
    int32_t key_tiles;          ///< 0: there are no more tiles of rows
    int32_t seen_by_all;        ///< the last key that every row sees
    int32_t past;               ///< blocks of the document before the rows' local
    int32_t first_slot;         ///< of local rows: where the first row's partial results begin, were it there
    bool there;                 ///< any row at all
    bool keys_go_on;            ///< the next tile has the same keys
};

template <class T>
struct ForwardShared {
    unsigned char q[T::kWarpgroups * T::kRowStages][hopper::tile_bytes<kConsumerRows, T::D>()];
    unsigned char k[T::kKeyStages][hopper::tile_bytes<T::kKeys, T::D>()];
    unsigned char v[T::kKeyStages][hopper::tile_bytes<T::kKeys, T::D>()];
    unsigned char partials[T::kPartialStages * T::Ring::kBytes + 16];
    ConsumerRows rows[T::kWarpgroups * T::kRowStages];
    int32_t sees[T::kLocal ? T::kWarpgroups * T::kRowStages : 1]
                [kConsumerRows];  ///< of local rows: the last token each sees
    Barrier q_full[T::kWarpgroups * T::kRowStages], q_free[T::kWarpgroups * T::kRowStages];
    Barrier k_full[T::kKeyStages], k_free[T::kKeyStages];
    Barrier v_full[T::kKeyStages], v_free[T::kKeyStages];
    Barrier v_here;  ///< of values that end with their block, before anyone else may see them
};

template <class T>
__device__ void init_barriers(ForwardShared<T>& shared) {
    for (int i = 0; i < T::kWarpgroups * T::kRowStages; ++i) {
        shared.q_full[i].init(32);
        shared.q_free[i].init(128);
    }
    for (int i = 0; i < T::kKeyStages; ++i) {
        shared.k_full[i].init(1);
        shared.v_full[i].init(1);
        shared.k_free[i].init(T::kWarpgroups * 4);
        shared.v_free[i].init(T::kWarpgroups * 4);
    }
    shared.v_here.init(1);
    hopper::publish_barriers();
}

/// One warp that fills a warpgroup's ring of rows. For short blocks it announces a tile while the next one's copies are
/// in flight, and warpgroups alternate at a tile's first rows, as a block's last tile is often not full.
template <class T>
class RowGatherer {
  public:
    __device__ RowGatherer(ForwardArgs const& args, ForwardShared<T>& shared, int warpgroup)
        : a_(args),
          shared_(shared),
          walk_(a_, args.keys_stay),
          q_(a_.q + threadIdx.x % kLanes * 8),
          to_(shared_address(shared.q[warpgroup * T::kRowStages]) +
              hopper::swizzled_offset<kConsumerRows>(threadIdx.x % 32 / kLanes, threadIdx.x % kLanes)),
          first_stage_(warpgroup * T::kRowStages),
          first_(warpgroup * kConsumerRows) {
        asm volatile("" : "+l"(q_));  // one multiplication and addition from here to any row
    }

    __device__ void run() {
        bool waiting = false;  // the tile before is not announced yet
        for (bool more = look(); more; ring_.advance()) {
            Work const& work = walk_.work();
            bool const there = !T::kShort || work.begin + first_ < work.end;
            Row rows[kConsumerRows / 32];  // found before there is room for them
#pragma unroll
            for (int i = 0; i < kConsumerRows / 32; ++i)
                rows[i] = T::kLocal ? local_row(a_, work, first_ + i * 32 + lane()) : row_of_entry(a_, work, entry_[i]);
            Barrier& free = shared_.q_free[first_stage_ + ring_.stage];
            if (waiting && !__all_sync(kAllLanes, free.done(ring_.free_parity()))) {
                finish(ring_.stage ^ 1);
                waiting = false;
            }
            free.wait(ring_.free_parity());
            describe(work, there);
            if (there)
#pragma unroll
                for (int i = 0; i < kConsumerRows / 32; ++i) {
                    copy_rows(rows[i], i * 32);
                    if (i == 0 && waiting) {
                        wait_for_copy_groups<1>();
                        announce(ring_.stage ^ 1);
                        waiting = false;
                    }
                }
            if (waiting) finish(ring_.stage ^ 1);
            more = look();  // while the copies are under way
            waiting = T::kShort;
            if (!waiting) finish(ring_.stage);
        }
        if (waiting) finish(ring_.stage ^ 1);
        shared_.q_free[first_stage_ + ring_.stage].wait(ring_.free_parity());
        if (lane() == 0) shared_.rows[first_stage_ + ring_.stage].key_tiles = 0;
        shared_.q_full[first_stage_ + ring_.stage].arrive();
    }

  private:
    static constexpr int kLanes = T::D / 8, kRowsAtOnce = 32 / kLanes;  // a lane copies 16 bytes

    __device__ static int lane() { return threadIdx.x % 32; }

    /// On to the next tile, whose entries are on their way then.
    __device__ bool look() {
        if (!walk_.next()) return false;
        if constexpr (T::kShort) first_ = first_ + kConsumerRows == T::kRows ? 0 : first_ + kConsumerRows;
#pragma unroll
        for (int i = 0; i < kConsumerRows / 32; ++i)
            entry_[i] = T::kLocal ? kNoEntry : routed_entry(a_, walk_.work(), first_ + i * 32 + lane());
        return true;
    }
    /// Starts the copies of 32 rows, of which each lane knows one, as a group.
    __device__ void copy_rows(Row const& row, int first) {
        shared_.rows[first_stage_ + ring_.stage].at[first + lane()] = T::kLocal ? row.at : row.slot;
        if constexpr (T::kLocal) shared_.sees[first_stage_ + ring_.stage][first + lane()] = row.limit;
        // For a row that is not there any other will do, as its result is not written.
        int32_t const at = max(row.at, 0);
        uint32_t const to = ring_.stage * hopper::tile_bytes<kConsumerRows, T::D>() + first * hopper::kPanelRowBytes;
#pragma unroll
        for (int eight = 0; eight < 32; eight += 8) {
            bf16 const* from[8 / kRowsAtOnce];
#pragma unroll
            for (int j = 0; j < 8 / kRowsAtOnce; ++j)
                from[j] = q_ + int64_t{__shfl_sync(kAllLanes, at, eight + j * kRowsAtOnce + lane() / kLanes)} * T::D;
                // The swizzle repeats after eight rows.
#pragma unroll
            for (int j = 0; j < 8 / kRowsAtOnce; ++j)
                hopper::copy_vector(
                    (to_ ^ j * kRowsAtOnce * 16) + to + (eight + j * kRowsAtOnce) * hopper::kPanelRowBytes, from[j],
                    true);
        }
        end_copy_group();
    }
    __device__ void describe(Work const& work, bool there) {
        if (lane() != 0) return;
        ConsumerRows& rows = shared_.rows[first_stage_ + ring_.stage];
        rows.key_begin = work.block.begin;
        rows.key_tiles = (work.key_end - work.block.begin + T::kKeys - 1) / T::kKeys;
        rows.seen_by_all = T::kLocal ? work.block.begin + (work.begin + first_) / a_.group : work.block.end - 1;
        rows.past = T::kLocal ? work.index - work.block.first : 0;
        rows.first_slot = T::kLocal ? local_slot(a_, work, first_) : 0;
        rows.there = there;
        rows.keys_go_on = walk_.goes_on();
    }
    __device__ void announce(int stage) {
        hopper::fence_shared_for_async();
        shared_.q_full[first_stage_ + stage].arrive();
    }
    __device__ void finish(int stage) {
        finish_copies();
        announce(stage);
    }

    AttentionArgs const& a_;
    ForwardShared<T>& shared_;
    typename T::Scheduler walk_;
    RingPosition<T::kRowStages> ring_;
    bf16 const* q_;
    uint32_t to_;  ///< this lane's vector of the first rows
    int first_stage_;
    int first_;  ///< of the warpgroup's rows in the tile
    uint32_t entry_[kConsumerRows / 32];
};

/// One warp; one of its lanes starts the TMA copies. It looks for the next tile while the keys of the last are being
/// loaded. Values beyond a block's end become zeros: their weight is zero, but zero times infinity is not.
template <class T>
__device__ void bring_keys(ForwardArgs const& args, ForwardShared<T>& shared) {
    RingPosition<T::kKeyStages> at;
    auto const bring = [&](unsigned char* to, CUtensorMap const& map, Barrier& full, int64_t head, int32_t key) {
        full.arrive_and_expect(hopper::tile_bytes<T::kKeys, T::D>());
        hopper::copy_tile<T::kKeys, T::D>(to, map, full, static_cast<int32_t>(head), key);
    };
    typename T::Scheduler walk(args, args.keys_stay);
    uint32_t parity = 0;
    bool more = walk.next();
    while (more) {
        int64_t const head = walk.work().g;
        int32_t key = walk.work().block.begin;
        int32_t const end = walk.continues() ? key : walk.work().key_end, block_end = walk.work().block.end;
        bool looked = false;
        for (; key < end; key += T::kKeys, at.advance()) {
            bool const ends = key + T::kKeys > block_end;
            if (threadIdx.x % 32 == 0) {
                shared.k_free[at.stage].wait(at.free_parity());
                bring(shared.k[at.stage], args.k_map, shared.k_full[at.stage], head, key);
                shared.v_free[at.stage].wait(at.free_parity());
                bring(shared.v[at.stage], args.v_map, ends ? shared.v_here : shared.v_full[at.stage], head, key);
            }
            __syncwarp();
            if (ends) {
                shared.v_here.wait(parity);
                parity ^= 1;
                hopper::clear_rows<T::kKeys, T::D>(shared.v[at.stage], block_end - key);
                if (threadIdx.x % 32 == 0) shared.v_full[at.stage].arrive();
            }
            if (!looked) more = walk.next();
            looked = true;
        }
        if (!looked) more = walk.next();
    }
}

}  // namespace perigee::block_sparse
