// Shared memory and barriers of a thread block of the sm90 backward, and the producer warps: one schedules rows, two
// gather them, one brings keys. With 24 registers each they reread shared memory rather than keep values.
#pragma once

#include "kernels/block_sparse_attention/backward_sm90.cuh"
#include "kernels/hopper/bulk_copy.cuh"

namespace perigee::block_sparse {

using hopper::Barrier;
using hopper::RingPosition;

inline constexpr int kProducers = 128;    ///< a warpgroup, for the registers it gives up; each warp has a task
inline constexpr uint32_t kItemRing = 4;  ///< at least the items in use: one is written out, one worked on, one loaded
inline constexpr int kScoresBarrier = 1;  ///< named, of the consumers
inline constexpr int32_t kNoMore = -2;    ///< instead of a row

template <int D>
struct Tiling {
    static constexpr int kRows = D == 128 ? 64 : 128;  ///< of q in a tile
    static constexpr int kStages = 3;
};

template <int D>
struct BackwardShared {
    using T = Tiling<D>;
    using KeyTile = unsigned char[hopper::tile_bytes<kKvTile, D>()];
    using RowTile = unsigned char[hopper::tile_bytes<T::kRows, D>()];
    KeyTile k, v;
    RowTile q[T::kStages], d_o[T::kStages];
    unsigned char ds[2][hopper::tile_bytes<T::kRows, kKvTile>()];
    float base[T::kStages][T::kRows], delta[T::kStages][T::kRows], factor[T::kStages][T::kRows];
    uint32_t entries[2][T::kRows];                 ///< routing entries, on their way to the row scheduler
    alignas(16) int32_t at[T::kStages][T::kRows];  ///< which row of [queries, H]; -1 for none
    bf16* to[T::kStages][T::kRows];                ///< where its dq goes: in `partial` or dq; null for none
    int32_t limit[T::kStages][T::kRows];           ///< the last token it sees
    WorkItem items[kItemRing];
    Barrier rows_known[T::kStages], rows_full[T::kStages], rows_free[T::kStages];
    Barrier item_known[2], keys_here, keys_full, keys_free[2];  ///< of pairs, item n has n % 2 in phase n / 2
};

/// Arrivals of a warp that has written or read all it had to: of each lane. One lane's after __syncwarp would do, but
/// racecheck does not follow what a lane wrote to the arrival of another.
inline constexpr uint32_t kWarpArrivals = 32;

__device__ __forceinline__ void arrive_as_warp(Barrier& barrier) {
    __syncwarp();
    barrier.arrive();
}

/// The first producer warp: takes items, and looks up the rows of every tile.
template <int D>
class RowScheduler {
    using T = Tiling<D>;

  public:
    __device__ RowScheduler(BackwardArgs const& f, BackwardShared<D>& shared)
        : f_(f), shared_(shared), lane_(threadIdx.x % 32) {}

    __device__ void run() {
        for (uint32_t n = 0;; ++n) {
            int32_t word = take();
            while (__shfl_sync(kAllLanes, word, offsetof(WorkItem, end) / sizeof(int32_t)) == kFiller) word = take();
            shared_.keys_free[n % 2].wait((n / 2 & 1) ^ 1);  // of the item before the last one
            WorkItem& item = shared_.items[n % kItemRing];
            if (lane_ < kWorkItemWords) reinterpret_cast<int32_t*>(&item)[lane_] = word;
            arrive_as_warp(shared_.item_known[n % 2]);
            if (item.end == kNoWork) break;
            look_up_rows(item);
        }
        shared_.rows_free[ring_.stage].wait(ring_.free_parity());
        if (lane_ == 0) shared_.at[ring_.stage][0] = kNoMore;
        arrive_as_warp(shared_.rows_known[ring_.stage]);
    }

  private:
    /// A word of the next item's description; -1 where there is none. Tile groups are taken whole.
    __device__ int32_t take() {
        if (next_ % f_.tile_group == 0) {
            if (lane_ == 0) next_ = atomicAdd(f_.counters + 1, f_.tile_group);
            next_ = __shfl_sync(kAllLanes, next_, 0);
        }
        int32_t const index = next_++;
        return index < f_.counters[0] && lane_ < kWorkItemWords
                   ? reinterpret_cast<int32_t const*>(f_.items + index)[lane_]
                   : -1;
    }

    __device__ void look_up_rows(WorkItem const& item) {
        fetch_entries(item, item.begin, 0);
        int buffer = 0;
        for (int32_t first = item.begin; first < item.end; first += T::kRows, ring_.advance(), buffer ^= 1) {
            int const stage = ring_.stage;
            fetch_entries(item, first + T::kRows, buffer ^ 1);
            wait_for_copy_groups<1>();
            shared_.rows_free[stage].wait(ring_.free_parity());
#pragma unroll 1
            for (int i = lane_; i < T::kRows; i += 32) look_up(item, first + i, shared_.entries[buffer][i], stage, i);
            arrive_as_warp(shared_.rows_known[stage]);
        }
        wait_for_copy_groups<0>();  // the buffers are free for the next item
    }
    /// Routed entries of a tile; a lane fetches what it will use.
    __device__ void fetch_entries(WorkItem const& item, int32_t first, int buffer) const {
        uint32_t const* const indices = f_.indices + item.g * f_.indices_stride + item.indices;
#pragma unroll 1
        for (int i = lane_; i < T::kRows; i += 32) {
            copy_4(&shared_.entries[buffer][i], indices + first + i, first + i < min(item.routed, item.end));
        }
        end_copy_group();
    }
    /// Query row `i`; `entry` is its routing entry, if it is routed.
    __device__ __forceinline__ void look_up(WorkItem const& item, int32_t i, uint32_t entry, int stage,
                                            int row_in_tile) const {
        int32_t const in_block = i - item.routed;
        bool const local = in_block >= 0;
        shared_.limit[stage][row_in_tile] =
            min(item.key_end - 1, local ? item.local_token + f_.query_of(in_block) : INT_MAX);
        int32_t const row = local ? item.local_row + in_block : static_cast<int32_t>(entry >> 6);
        int32_t const query = f_.query_of(row), at = query * f_.heads + item.g * f_.group + row - query * f_.group;
        bool const there = i >= item.first && i < item.end;
        shared_.at[stage][row_in_tile] = there ? at : -1;
        // dQ partials of the local block follow those of the slots; its first tile group uses dq.
        int32_t const slot = local ? f_.slots * f_.tile_groups - 1 : static_cast<int32_t>(entry & 63) * f_.tile_groups;
        bool const in_dq = f_.adds_to_dq || (local && (item.flags & kFirstTileGroup) != 0);
        int32_t const index = in_dq ? at
                                    : static_cast<int32_t>(static_cast<uint32_t>(item.first_slot) +
                                                           static_cast<uint32_t>(row) * f_.row_slots + slot);
        shared_.to[stage][row_in_tile] = there ? (in_dq ? f_.dq : f_.partial) + int64_t{index} * D : nullptr;
    }

    BackwardArgs const& f_;
    BackwardShared<D>& shared_;
    int lane_;
    int32_t next_ = 0;  ///< item
    RingPosition<T::kStages> ring_;
};

/// The second and third producer warps: rows of q with their base, rows of do with their delta and factor. Numbers of a
/// tile's i-th row, number `at` of all, are copied by `copy_stats(stage, i, at, whether it is there)`.
template <int D, class CopyStats>
__device__ void copy_rows(BackwardShared<D>& shared, bf16 const* rows,
                          typename BackwardShared<D>::RowTile (&tiles)[Tiling<D>::kStages],
                          CopyStats const& copy_stats) {
    using T = Tiling<D>;
    constexpr int kVectors = D / 8;                         // of 16 bytes, of a row
    constexpr int kRowsOfGroup = T::kRows * kVectors / 32;  // of kVectors lanes, which copy consecutive rows
    for (RingPosition<T::kStages> ring;; ring.advance()) {
        int const stage = ring.stage;
        shared.rows_known[stage].wait(ring.parity());
        if (shared.at[stage][0] == kNoMore) break;
        int const lane = static_cast<int>(hopper::thread_anew() % 32), vector = lane % kVectors;
#pragma unroll 1
        for (int i = lane; i < T::kRows; i += 32) {
            int32_t const at = shared.at[stage][i];
            copy_stats(stage, i, max(at, 0), at >= 0);
        }
        int const first = lane / kVectors * kRowsOfGroup;
        auto const* source = reinterpret_cast<unsigned char const*>(rows + vector * 8);
        asm volatile("" : "+l"(source));  // a sum: else every address adds its parts anew
        uint32_t to = shared_address(tiles[stage]) + hopper::swizzled_offset<T::kRows>(first, vector);
#pragma unroll 1
        for (int i = first; i < first + kRowsOfGroup; i += 4) {
            int4 const at = *reinterpret_cast<int4 const*>(&shared.at[stage][i]);
            auto const copy = [&](int row, int32_t from) {  // the next rows: other bits of swizzle
                hopper::copy_vector((to ^ row * 16) + row * hopper::kPanelRowBytes,
                                    source + int64_t{from} * static_cast<int64_t>(D * sizeof(bf16)), from >= 0);
            };
            copy(0, at.x), copy(1, at.y), copy(2, at.z), copy(3, at.w);
            to = (to ^ 4 * 16) + 4 * hopper::kPanelRowBytes;
        }
        shared.rows_full[stage].arrive_when_copied();
    }
    finish_copies();
}

struct ProductArgs : BackwardArgs {
    CUtensorMap k_map, v_map;
};

/// The fourth producer warp: keys and values, by TMA. Past a short run's end it brings those of other
/// blocks, which become zeros here: their weights are masked, but zero times infinity would not be zero.
template <int D>
__device__ void copy_keys(ProductArgs const& args, BackwardShared<D>& shared) {
    using T = Tiling<D>;
    uint32_t parity = 0;
    for (uint32_t n = 0;; ++n) {
        shared.item_known[n % 2].wait(n / 2 & 1);
        WorkItem const& item = shared.items[n % kItemRing];
        if (n > 0) shared.keys_free[(n - 1) % 2].wait((n - 1) / 2 & 1);
        if (item.end == kNoWork) break;
        int const keys = item.begin < item.end ? item.key_end - item.key : kKvTile;
        if (threadIdx.x % 32 == 0 && item.begin >= item.end) shared.keys_full.arrive();  // nobody will look at them
        if (threadIdx.x % 32 == 0 && item.begin < item.end) {
            Barrier& landed = keys < kKvTile ? shared.keys_here : shared.keys_full;
            landed.arrive_and_expect(2 * sizeof(shared.k));
            hopper::copy_tile<kKvTile, D, 1>(shared.k, args.k_map, landed, item.g, item.key);
            hopper::copy_tile<kKvTile, D, 1>(shared.v, args.v_map, landed, item.g, item.key);
        }
        __syncwarp();
        if (keys == kKvTile) continue;
        shared.keys_here.wait(parity);
        parity ^= 1;
        hopper::clear_rows<kKvTile, D>(shared.k, keys);
        hopper::clear_rows<kKvTile, D>(shared.v, keys);
        if (threadIdx.x % 32 == 0) shared.keys_full.arrive();
    }
    if (threadIdx.x % 32 == 0) shared.keys_full.arrive();  // that there is nothing more
}

}  // namespace perigee::block_sparse
