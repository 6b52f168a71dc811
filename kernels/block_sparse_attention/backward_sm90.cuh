// What the kernels of the sm90 backward share. A work item is a KV tile and a split of the query rows that see it: the
// block's routed rows, then its local rows. Items of the same split are neighbours, so that one brings the rows into
// the L2 cache. README.md says where dq, dk and dv go. Columns of dQ partials are permuted: of 32, pair (2 c, 2 c + 1)
// is at pair c / 4 + c % 4 * 4.
#pragma once

#include <cstddef>

#include "kernels/block_sparse_attention/query_tiles.cuh"
#include "kernels/hopper/results.cuh"

namespace perigee::block_sparse {

inline constexpr int kConsumers = 256;  ///< threads that hold dk and dv: two warpgroups of 64 keys each
inline constexpr int kWorkItemWords = 16;
inline constexpr int32_t kNoWork = -1, kFiller = -2;  ///< as the end of an item

/// Flags: add to the dQ partial of the tile group's earlier KV tiles; to carried dk and dv; first tile group of the
/// block.
inline constexpr int32_t kAddToPartial = 1, kAddToSums = 2, kFirstTileGroup = 4;

struct alignas(16) WorkItem {
    int32_t g;            ///< key/value head
    int32_t key;          ///< keys [key, key_end)
    int32_t key_end;      ///
    int32_t begin;        ///< query rows [begin, end) of this split
    int32_t end;          ///< kNoWork: nothing left; kFiller: pads a tile group
    int32_t indices;      ///< first of the routed rows in the head's indices
    int32_t routed;       ///< query rows [0, routed) are routed, the others local
    int32_t local_row;    ///< first local row, counted in the head's rows
    int32_t local_token;  ///< its token
    int32_t masked;       ///< query rows [masked, masked_end) do not see all keys
    int32_t masked_end;   ///
    int32_t first_slot;   ///< in `partial`, of this tile group, row 0, slot 0
    int32_t sums;         ///< index in BackwardArgs::sums where dk and dv go; -1: they are done
    int32_t first;        ///< first row that counts; `begin` is rounded down to a whole tile
    int32_t flags;        ///< kAddToPartial, kAddToSums, kFirstTileGroup
};
static_assert(sizeof(WorkItem) == kWorkItemWords * sizeof(int32_t));

struct BackwardArgs : AttentionArgs {
    int32_t earlier;  ///< blocks that begin before this token were in an earlier pass of the head
    int32_t later;    ///< blocks that begin at or after this token are left to a later one
    int32_t kv_tiles, tile_group, tile_groups, row_slots, split_rows;
    bool whole_kv_tiles;     ///< a whole block has whole KV tiles
    uint32_t inverse_group;  ///< 2^32 / group, rounded up; 0 for a group of one
    bool carry;              ///< sums go from pass to pass
    int32_t carried_tiles;   ///< before splits in `sums`
    bool carry_out;          ///< there is a later pass
    float score_of_base;     ///< -1 / (scale log2 e): from base to what is added to scores

    /// row / group. Exact: rows are below 2^26, groups of this path at most 64.
    __device__ int32_t query_of(int32_t row) const {
        return inverse_group == 0 ? row : static_cast<int32_t>(__umulhi(static_cast<uint32_t>(row), inverse_group));
    }
};
BackwardArgs backward_args(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients);

/// The power of two that scales a row of dq while KV tiles add to it in fp16. Sums stay below 2^15: |dq| <= 2 D max|do|
/// max|v| max|k|, given as bits of bf16, `d_o` of the row. One where a maximum is not finite.
__device__ __forceinline__ float factor_of_row(uint32_t d_o, uint32_t k, uint32_t v, int head_dim) {
    constexpr int kBias = 127;
    auto const exponent = [](uint32_t bits) { return max(static_cast<int>(bits >> 7), 1) - (kBias - 1); };  // below 2^
    if (max(d_o, max(k, v)) >= 0x7f80) return 1;
    int const bound = 1 + (31 - __clz(head_dim)) + exponent(d_o) + exponent(k) + exponent(v);
    return __int_as_float((min(max(15 - bound, -120), 120) + kBias) << 23);
}
/// Of a power of two, exactly.
__device__ __forceinline__ float inverse_of_power(float x) { return __int_as_float((254 << 23) - __float_as_int(x)); }

/// Index in `sums`, where they are carried, of the KV tile that begins at `key` of the index-th block; unique in the
/// pack.
__device__ __forceinline__ int32_t carried_slot(BackwardArgs const& f, int32_t index, int32_t key) {
    return key / kKvTile + (f.whole_kv_tiles ? f.blocks[index].document : index);
}
/// Writes a warpgroup's sum of dk (0) or dv (1) of the keys from `key` on, as far as they are before `end`.
template <int D>
__device__ __forceinline__ void write_key_gradient(AttentionArgs const& a, float const (&x)[D / 2], int which,
                                                   int64_t g, int32_t key, int32_t end) {
    bf16* const to = (which == 0 ? a.dk : a.dv) + (int64_t{key} * a.kv_heads + g) * D;
    hopper::write_rows<D>(to, int64_t{a.kv_heads} * D, end - key, x, which == 0 ? a.scale : 1.0f, a.add_to_dkv);
}
/// Sums of dk (0) or dv (1) of the index-th KV tile.
template <int D>
__device__ __forceinline__ float4* sums_of(float4* partial_splits, int32_t index, int which, int consumer) {
    return partial_splits + (int64_t{index} * 2 + which) * (D / 8) * kConsumers + consumer;
}

}  // namespace perigee::block_sparse
