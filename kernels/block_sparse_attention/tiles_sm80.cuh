// What both backward kernels share: the probabilities of a tile from the merged log-sum-exp, and the gradients of the
// scores. P = exp(scale s - lse), dS = P (dP - delta), dP = do v^T, delta = rowsum(do * o).
#pragma once

#include "kernels/ampere/tile.cuh"
#include "kernels/block_sparse_attention/query_tiles.cuh"

namespace perigee::block_sparse {

using namespace ampere;

/// Starts copying the keys and values [begin, begin + kTileKeys) of the work; zeros where there are none.
template <int D>
__device__ void load_keys(AttentionArgs const& a, Work const& work, int32_t begin, bf16* k, bf16* v) {
    auto const from = [&](bf16 const* x) {
        return [&, x](int row, bool& there) {
            there = begin + row < work.key_end;
            return x + (int64_t{there ? begin + row : begin} * a.kv_heads + work.g) * D;
        };
    };
    load_rows<D, kTileKeys, kAttentionThreads>(k, from(a.k));
    load_rows<D, kTileKeys, kAttentionThreads>(v, from(a.v));
    end_copy_group();
}

/// [16, 64] scores of one warp: a [16, D] strip of `left` against the 64 rows of `right`.
template <int D>
__device__ __forceinline__ void score(float (&s)[8][4], bf16 const* left, int row, bf16 const* right) {
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        uint32_t a[4];
        load_left<D>(a, left, row, step);
        multiply_rows<D>(s, a, right, step);
    }
}

/// o [16, D] += s [16, 64], rounded, times the 64 rows of `right`.
template <int D>
__device__ __forceinline__ void weigh(float (&o)[1][D / 8][4], float const (&s)[8][4], bf16 const* right) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        uint32_t a[1][4];
        to_left(a[0], s, step);
        accumulate<D, 1>(o, a, right, step);
    }
}

}  // namespace perigee::block_sparse
