// What the sm80 kernels share: query tiles against KV tiles of 64 keys by the products of four warps.
#pragma once

#include "kernels/ampere/tile.cuh"
#include "kernels/block_sparse_attention/query_tiles.cuh"

namespace perigee::block_sparse {

using namespace ampere;

inline constexpr int kThreads = 128;  ///< four warps

/// The thread block's query tile: tiles of all heads of the pass are one grid. False where there is none.
template <bool kLocal, int kRows>
__device__ bool find_work(AttentionArgs const& a, Work& work) {
    std::conditional_t<kLocal, LocalScheduler<kRows>, RoutedScheduler<kRows>> scheduler(a, false);
    if (!scheduler.next()) return false;
    work = scheduler.work();
    return true;
}
template <bool kLocal>
__device__ __forceinline__ Row row_of(AttentionArgs const& a, Work const& work, int i) {
    return kLocal ? local_row(a, work, i) : row_of_entry(a, work, routed_entry(a, work, i));
}

/// Starts copying kRows rows of x [rows, D]; `at(i)` says which is the i-th, -1 for zeros.
template <int D, int kRows, class At>
__device__ __forceinline__ void gather_rows(bf16* tile, bf16 const* x, At at) {
    load_rows<D, kRows, kThreads>(tile, [&](int i, bool& there) {
        auto const row = at(i);
        there = row >= 0;
        return x + int64_t{there ? row : 0} * D;
    });
}
/// Starts copying the keys and values [begin, begin + kTileKeys) of kv head g; zeros from `end` on.
template <int D>
__device__ __forceinline__ void load_keys(AttentionArgs const& a, int64_t g, int32_t begin, int32_t end, bf16* k,
                                          bf16* v) {
    auto const at = [&](int i) { return begin + i < end ? int64_t{begin + i} * a.kv_heads + g : -1; };
    gather_rows<D, kTileKeys>(k, a.k, at);
    gather_rows<D, kTileKeys>(v, a.v, at);
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

/// The lane's part of one of its two rows of o [16, D] += weight times a row of bf16.
template <int D>
__device__ __forceinline__ void add_row(float (&o)[D / 8][4], int half, bf16 const* row, float weight) {
    auto const* const from = reinterpret_cast<uint32_t const*>(row) + threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
        o[n][2 * half] += weight * low(from[n * 4]);
        o[n][2 * half + 1] += weight * high(from[n * 4]);
    }
}
/// Writes it, times `factor`; `add`: to what is there.
template <int D>
__device__ __forceinline__ void write_row(bf16* row, float const (&o)[D / 8][4], int half, float factor,
                                          bool add = false) {
    auto* const to = reinterpret_cast<uint32_t*>(row) + threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
        uint32_t const before = add ? to[n * 4] : 0x80008000;  // minus zero, which changes nothing
        to[n * 4] = pack(low(before) + o[n][2 * half] * factor, high(before) + o[n][2 * half + 1] * factor);
    }
}

}  // namespace perigee::block_sparse
