// The fused backward on Hopper: what its kernels share. Work is cut into items: a kv_tile of kKvTile keys of a block,
// and a split of the rows that see it ("query_rows": those of the block's indices, then rows of the block itself).
// Items of different tile_groups and the same split are neighbours: taken at about the same time, one brings the rows
// into the cache.
//
// Runs of a block form tile_groups. Items of a tile_group follow each other in one thread block, each with the rows to
// bring anew, as there a row always meets the same threads: the first kv_tile leaves a row's partial dq, the others add
// to it, in bf16, in the L2 cache. The layout suits the registers it comes from, and is not scaled yet: of every 32
// columns, the pair (2 c, 2 c + 1) lies at pair c / 4 + c % 4 * 4. sum_query_gradients adds the tile_groups' partial dq
// in order; the first tile_group of a row's local block has its carried in dq. A split that has its keys to itself
// writes dk and dv; else the splits' sums are added by sum_key_gradients.
//
// Where the order may be any, all kv_tiles of all blocks add to dq itself, as fp16, each a tile_group of its local;
// each row is multiplied by a power of two such that no sum overflows. lay_query_gradients_out makes bf16 in its layout
// of that. Or, where rows have chunk_ends and a head's queries several passes, all splits of all of these add to one
// fp32 sum of their keys, which sum_key_gradients writes after the last.
#pragma once

#include <cstddef>

#include "kernels/block_sparse_attention/query_tiles.cuh"
#include "kernels/hopper/tile.cuh"

namespace perigee::block_sparse {

inline constexpr int kConsumers = 256;  ///< threads that hold dk and dv: two warpgroups of 64 keys each
inline constexpr int kWorkItemWords = 16;
inline constexpr int32_t kNoWork = -1, kFiller = -2;  ///< as the end of an item

/// Of items: they add to the partial dq of earlier kv_tiles of the tile_group; to dk and dv of earlier passes; their
/// tile_group is the block's first.
inline constexpr int32_t kAddToPartial = 1, kAddToSums = 2, kFirstTileGroup = 4;

struct alignas(16) WorkItem {
    int32_t g;            ///< key/value head
    int32_t key;          ///< keys [key, key_end)
    int32_t key_end;      ///
    int32_t begin;        ///< query_rows [begin, end) of this split
    int32_t end;          ///< kNoWork where there is none left, kFiller in a tile_group that is not full
    int32_t indices;      ///< in the head's indices
    int32_t routed;       ///< query_rows [0, routed) are entries indices + i; the others rows of the block itself
    int32_t local_row;    ///< row of the first of those, counted from query 0 in the head's rows
    int32_t local_token;  ///< its token
    int32_t masked;       ///< query_rows [masked, masked_end) do not see all keys
    int32_t masked_end;   ///
    int32_t first_slot;   ///< in `partial`, of this tile_group and row 0, slot 0
    int32_t split;        ///< where the sums go, or -1: to `carried`, or to dk and dv
    int32_t carried;      ///< in `carried`
    int32_t first;  ///< of the split's query_rows; those from `begin` on only keep rows in their chunk_ends of a tile
    int32_t flags;  ///< kAddToPartial, kAddToSums, kFirstTileGroup
};
static_assert(sizeof(WorkItem) == kWorkItemWords * sizeof(int32_t));

struct BackwardArgs {
    AttentionArgs a;
    WorkItem* items;
    int32_t* item_begin;   ///< [pass heads, blocks + 1], counted from each head's first
    int32_t* split_begin;  ///< the same, of splits that share their keys and have sums of their local
    int32_t* counters;     ///< items of the pass, and how many of them are taken
    float4* splits;        ///< [splits, 2, K / 8, kConsumers]
    float4* carried;       ///< [kv_tiles of all blocks, 2, K / 8, kConsumers]: sums of earlier passes of the same head
    int32_t earlier;       ///< blocks that begin before this token were in an earlier pass of the head
    int32_t later;         ///< blocks that begin at or after this token are left to a later one
    int32_t pass_heads, kv_tiles, tile_group, tile_groups, row_slots, split_rows;
    bool whole_kv_tiles;     ///< a whole block has whole kv_tiles
    uint32_t inverse_group;  ///< 2^32 / group, rounded up; 0 for a group of one
    bool carry;              ///< sums go from pass to pass in `carried`; else in dk and dv
    bool carry_out;          ///< there is a later pass
    bool adds_to_dq;         ///< dq is zero before, and has no partial results

    /// row / group. Exact: rows are below 2^26, groups of this path at most 64.
    __device__ int32_t query_of(int32_t row) const {
        return inverse_group == 0 ? row : static_cast<int32_t>(__umulhi(static_cast<uint32_t>(row), inverse_group));
    }
};
BackwardArgs backward_args(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients);

/// Four lanes (of a quad) with four words each: lane l's word i becomes lane i's word l.
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4]) {
    int const lane = threadIdx.x % 4;
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if ((i & distance) == 0) {
                bool const upper = (lane & distance) != 0;
                uint32_t const got = __shfl_xor_sync(kAllLanes, upper ? x[i] : x[i + distance], distance);
                (upper ? x[i] : x[i + distance]) = got;
            }
}

/// Stores eight bf16, or adds them in the L2 cache, where `there`. What one thread stores and adds at one carried
/// happens in the order in which it says so.
__device__ __forceinline__ void store_where(bf16* to, bool there, uint32_t const (&x)[4]) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(int{there})
                 : "memory");
}
__device__ __forceinline__ void add_where(bf16* to, bool there, uint32_t const (&x)[4]) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
        "@p red.relaxed.gpu.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(int{there})
        : "memory");
}
/// The same with fp16.
__device__ __forceinline__ void add_halves_where(bf16* to, bool there, uint32_t const (&x)[4]) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
        "@p red.relaxed.gpu.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(int{there})
        : "memory");
}
__device__ __forceinline__ uint32_t pack_halves(float first, float second) {
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(second), "f"(first));
    return x;
}

/// The power of two by which a row of dq is multiplied where visits add to it in fp16. Any sum of weights times (dP -
/// delta) times a number of k, weights of a row being at most one together, is below 2 D |do| |v| |k| of the max_abs of
/// the row of do, of v and of k, which are given as the bits of a bf16: the row's numbers stay below 2^15. One where a
/// max_abs is not finite.
__device__ __forceinline__ float factor_of_row(uint32_t d_o, uint32_t k, uint32_t v, int head_dim) {
    constexpr int kBias = 127;
    auto const exponent = [](uint32_t bits) { return max(static_cast<int>(bits >> 7), 1) - (kBias - 1); };  // below 2^
    if (max(d_o, max(k, v)) >= 0x7f80) return 1;
    int const bound = 1 + (31 - __clz(head_dim)) + exponent(d_o) + exponent(k) + exponent(v);
    return __int_as_float((min(max(15 - bound, -120), 120) + kBias) << 23);
}
/// Of a power of two, exactly.
__device__ __forceinline__ float inverse_of_power(float x) { return __int_as_float((254 << 23) - __float_as_int(x)); }

/// Rounds and writes, or adds, the 64 keys' gradient that a warpgroup holds as a product's result [64, D].
struct KeyRange {
    int32_t key, end;
    int64_t g;
    bool add;
};
template <int D>
__device__ __forceinline__ void write_key_gradient(AttentionArgs const& a, float const (&x)[D / 2], float factor,
                                                   bf16* to, int thread, KeyRange keys) {
    int const lane = thread % 32;
    int32_t const first = keys.key + thread % 128 / 32 * 16 + lane / 4;
    auto* const at = reinterpret_cast<uint4*>(to + (int64_t{first} * a.kv_heads + keys.g) * D) + lane % 4;
    int64_t const other = int64_t{8} * a.kv_heads * (D / 8);  // from a thread's first row to its second
    uint4 before[2][D / 32] = {};
    if (keys.add) {  // all at once: who waits has nothing else to do
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int group = 0; group < D / 32; ++group)
                if (first + half * 8 < keys.end) before[half][group] = at[half * other + group * 4];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int group = 0; group < D / 32; ++group) {
            uint4 const old = before[half][group];
            uint32_t word[4] = {old.x, old.y, old.z, old.w};
            if (keys.add) transpose_quad(word);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float const* const mine = &x[16 * group + 4 * i + 2 * half];
                word[i] = pack(low(word[i]) + mine[0] * factor, high(word[i]) + mine[1] * factor);
            }
            transpose_quad(word);
            if (first + half * 8 < keys.end) at[half * other + group * 4] = {word[0], word[1], word[2], word[3]};
        }
}

/// A warpgroup's [64, D] result, whole and in fp32, to or from where its thread finds it again. Added to what is there
/// by the L2 cache, as nobody waits for it; one thread does so once in a launch, unless splits share sums.
template <int D>
__device__ __forceinline__ void store_sums(float4* to, float const (&x)[D / 2], bool add = false) {
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
        float4* const at = to + i * kConsumers;
        if (add)
            asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(x[4 * i]),
                         "f"(x[4 * i + 1]), "f"(x[4 * i + 2]), "f"(x[4 * i + 3])
                         : "memory");
        else
            *at = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
    }
}
template <int D>
__device__ __forceinline__ void add_sums(float (&x)[D / 2], float4 const* from) {
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
        float4 const y = from[i * kConsumers];
        x[4 * i] += y.x, x[4 * i + 1] += y.y, x[4 * i + 2] += y.z, x[4 * i + 3] += y.w;
    }
}
/// A carried in `carried` for the kv_tile that begins at `key` of the index-th block: different for all kv_tiles of a
/// pack, and below tokens / kKvTile + the number of blocks; of documents, where kv_tiles end inside of blocks only with
/// those.
__device__ __forceinline__ int32_t carried_slot(BackwardArgs const& f, int32_t index, int32_t key) {
    return key / kKvTile + (f.whole_kv_tiles ? f.a.blocks[index].document : index);
}
/// Of dk (0) or dv (1) of the index-th kv_tile of keys.
template <int D>
__device__ __forceinline__ float4* sums_of(float4* partial_splits, int32_t index, int which, int consumer) {
    return partial_splits + (int64_t{index} * 2 + which) * (D / 8) * kConsumers + consumer;
}

}  // namespace perigee::block_sparse
