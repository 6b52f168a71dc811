// What both backward kernels share: the probabilities of a tile from the merged log-sum-exp, and the gradients of the
// scores. P = exp(scale s - lse), dS = P (dP - delta), dP = do v^T, delta = rowsum(do * o).
#pragma once

#include "kernels/block_sparse_attention/mma_tile.cuh"
#include "kernels/block_sparse_attention/query_tiles.cuh"

namespace perigee::block_sparse {

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
