// Shared memory and barriers of a thread block of the sm90 backward.
#pragma once

#include "kernels/block_sparse_attention/backward_sm90.cuh"
#include "kernels/hopper/barrier.cuh"
#include "kernels/hopper/tile.cuh"

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
    static constexpr int kTileBytes = hopper::tile_bytes<kRows, D>();
    static constexpr int kKeyBytes = hopper::tile_bytes<kKvTile, D>();
    static constexpr int kScoreBytes = hopper::tile_bytes<kKvTile, kRows>();
};

template <int D>
struct BackwardShared {
    using T = Tiling<D>;
    unsigned char k[T::kKeyBytes], v[T::kKeyBytes];
    unsigned char q[T::kStages][T::kTileBytes], d_o[T::kStages][T::kTileBytes];
    unsigned char ds[2][T::kScoreBytes];  ///< transposed: [keys, rows]
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

}  // namespace perigee::block_sparse
