// What the kernels of the dense backward share. A work item is a KV tile of a key/value head, with all rows that see it
// of all query heads of its group, or of one or two: then the KV tile's items add dK and dV up, one after another. In
// an item dK and dV stay in registers; KV tiles add to dQ in fp32. `kOrdered`: deterministic.
#pragma once

#include "kernels/dense_attention/stages.h"
#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/hopper/results.cuh"

namespace perigee::dense {

using namespace kernels;
using hopper::Barrier, hopper::kArrivalsPerWarp, hopper::RingPosition;

inline constexpr int kConsumers = 256;  ///< threads that hold dk and dv: two warpgroups of 64 keys each
inline constexpr int kProducers = 128;
inline constexpr int kKvTile = 128;

template <int kHeadDim>
struct BackwardTiling {
    static constexpr int D = kHeadDim;
    static constexpr int kRows = D > 64 ? 64 : 128;                                       // of a row tile
    static constexpr int kStages = D > 64 ? 3 : 2;                                        // row tiles in shared memory
    static constexpr int kTilesOfKv = kKvTile / kRows;                                    // row tiles to a KV tile
    static constexpr int kSums = kRows * hopper::kPanels<D> * hopper::kPanelColumns / 4;  // float4 of a row tile's dq
    /// Whether the next scores are under way while dq is added: registers suffice with 64 rows a tile.
    static constexpr bool kAhead = D > 64;
    static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
    static constexpr int kStatsBytes = 2 * kRows * sizeof(float);
};

struct BackwardArgs {
    Schedule schedule;
    CUtensorMap q_map, do_map, k_map, v_map;
    float* stats;  ///< [H, row tiles, 2, kRows]: of each row -lse / scale and -delta
    /// [H, row tiles]: KV tiles that have added to dq. Where they do so in any order: 0, -1 once one has claimed to be
    /// the first, 1 when its part is there.
    int32_t* turns;
    float4* sums;         ///< [H, row tiles, 8, kConsumers]: dq, as the consumers' registers have it
    int32_t* parts_done;  ///< [G, KV tiles]
    float4* key_sums;     ///< [G, KV tiles, K / 4, kConsumers]: dk, dv of the parts that are done, in the same way
    bf16 const* o;
    bf16 const* d_o;
    float const* lse;
    bf16 *dq, *dk, *dv;
    float scale;
    int32_t heads, kv_heads, group;
    int32_t item_heads;                    ///< query heads of an item: a group, 2 or 1
    int32_t first_kv_head, pass_kv_heads;  ///< of this pass; items, stats, turns and sums count heads from its first
    int32_t row_tiles;                     ///< that there is room for, of each head
    int32_t window;                        ///< 0: none
};

template <int D>
void preprocess_backward(BackwardArgs const& args, cudaStream_t stream);  ///< stats; turns, parts_done = 0
template <int D>
void convert_query_gradient(BackwardArgs const& args, cudaStream_t stream);  ///< sums -> dq

/// A row tile, found by its number.
struct RowTile {
    int32_t token, rows;  ///< 0: none
    int32_t row;          ///< the first, counted from the document's beginning

    template <int D>
    static __device__ RowTile of(Schedule const& s, int32_t index) {
        using T = BackwardTiling<D>;
        int32_t const kv_tile = index / T::kTilesOfKv;
        if (kv_tile >= s.first_tile[s.count]) return {0, 0, 0};
        int32_t low = 0, high = s.count;  // the document that has the KV tile
        while (high - low > 1) {
            int32_t const middle = (low + high) / 2;
            (s.first_tile[middle] <= kv_tile ? low : high) = middle;
        }
        Document const& d = s.documents[low];
        int32_t const row = (index - s.first_tile[low] * T::kTilesOfKv) * T::kRows, token = d.begin + row;
        return {token, max(min(T::kRows, d.end - token), 0), row};
    }
};

}  // namespace perigee::dense
