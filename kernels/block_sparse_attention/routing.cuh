// A selection as the routing kernels read it: two lanes to a row, each with every other slot of a batch of up to eight.
// A row's batches count as rows of their own.
#pragma once

#include <cstdint>

#include "kernels/block_sparse_attention/query_tiles.cuh"

namespace perigee::block_sparse {

inline constexpr int kBatchSlots = 8;

struct RoutingArgs : AttentionArgs {
    int32_t chunk_queries, row_tile;
    int32_t batches, batch_slots;  ///< of a row; slots of a batch but the last
    int32_t part_chunks;           ///< whose entries a thread block fills in
};

/// What a thread block counts or fills in: batches [begin, end) of key/value head g, all those of a range of query
/// chunks. Only entries for blocks [low, high) count.
struct RoutingRange {
    int32_t g, begin, end, low, high;
    int32_t first;  ///< of the one document of all rows, or -1
};
__device__ inline RoutingRange part_of(RoutingArgs const& a, int32_t chunk, int32_t chunks, int32_t range_blocks) {
    RoutingRange p;
    p.g = static_cast<int32_t>(blockIdx.x);
    int32_t const begin = chunk * a.chunk_queries, end = min(begin + chunks * a.chunk_queries, a.queries);
    int32_t const of_query = a.group * a.batches;
    p.begin = begin * of_query, p.end = end * of_query;
    int32_t const range = static_cast<int32_t>(blockIdx.z) * range_blocks;
    int32_t const last = a.block_of[a.query_begin + end - 1];
    p.first = a.blocks[a.block_of[a.query_begin + begin]].first;
    p.low = max(p.first, range);
    p.high = min(last, range + range_blocks);
    if (a.blocks[last].first != p.first) p.first = -1;
    return p;
}

/// A batch of a row, and the way from it to others a constant stride away, without divisions.
struct BatchCursor {
    int32_t at, query, of_query;           ///< batch; its query, and its index among that query's batches
    int32_t stride, queries, rest, group;  ///< stride = queries * group + rest; group: batches of a query

    __device__ __forceinline__ BatchCursor(RoutingArgs const& a, int32_t begin, int32_t step)
        : at(begin), stride(step), group(a.group * a.batches) {
        query = at / group, of_query = at - query * group;
        queries = stride / group, rest = stride - queries * group;
    }
    __device__ __forceinline__ void advance() {
        at += stride, query += queries, of_query += rest;
        if (of_query >= group) of_query -= group, ++query;
    }
};

/// The blocks that a lane's slots chose, counted from the part's first; -1 for none, or none that counts: not in the
/// row's past, or not in the part's range. Of kSteps batches below `end`.
template <int kSteps, int kPairs>
__device__ __forceinline__ void load_selection(RoutingArgs const& a, RoutingRange const& p, BatchCursor& walk,
                                               int32_t end, int32_t (*block)[kPairs]) {
    int const parity = static_cast<int>(threadIdx.x) % 2;
    int32_t local[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step, walk.advance()) {
        bool const there = walk.at < end;
        int32_t const row = a.batches == 1 ? walk.of_query : walk.of_query / a.batches;
        int32_t const slot = (walk.of_query - row * a.batches) * a.batch_slots + parity;
        int32_t const slots = there ? min(a.slots, slot - parity + a.batch_slots) : 0;
        int32_t const* const selection =
            a.chosen + (int64_t{walk.query} * a.heads + p.g * a.group + row) * a.slots + slot;
        local[step] = there ? a.block_of[a.query_begin + walk.query] : -1;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) block[step][i] = slot + 2 * i < slots ? selection[2 * i] : -1;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        int32_t const first = p.first >= 0 || local[step] < 0 ? p.first : a.blocks[local[step]].first;
        int32_t const low = max(p.low - first, 0), shift = first - p.low;
        auto const count = static_cast<uint32_t>(local[step] < 0 ? 0 : max(min(local[step], p.high) - first - low, 0));
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
            block[step][i] = static_cast<uint32_t>(block[step][i] - low) < count ? block[step][i] + shift : -1;
    }
}

}  // namespace perigee::block_sparse
