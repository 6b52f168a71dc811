// Tiles of bf16 rows in shared memory and the products a warp makes of them (mma.sync). A layout spreads the 16-byte
// vectors that ldmatrix reads together, of eight rows, over all banks for every multiple of 32.
// Fragment layouts: PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
#pragma once

#include <cstdint>

#include "base/bf16.h"
#include "kernels/common/async_copy.cuh"
#include "kernels/common/fragments.cuh"

namespace perigee::ampere {

using namespace kernels;

inline constexpr int kTileKeys = 64;  ///< keys of a step; a warp's scores are [16, 64] fragments

/// The shared memory a launch asks for.
__device__ __forceinline__ unsigned char* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char memory[];
    return memory;
}

/// load_matrices, each matrix transposed.
__device__ __forceinline__ void load_transposed(uint32_t (&x)[4], bf16 const* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// c [16, 8] += a [16, 16] b [16, 8].
__device__ __forceinline__ void mma(float* c, uint32_t const (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int D>
__host__ __device__ constexpr int tile_stride() {
    return D + 8;
}
template <int D>
__host__ __device__ constexpr size_t tile_bytes(int rows) {
    return sizeof(bf16) * static_cast<size_t>(rows) * tile_stride<D>();
}

/// Rows of 16 bytes more than their numbers: places of vectors are sums.
template <int D>
struct Padded {
    static __host__ __device__ constexpr int at(int row, int column) { return row * tile_stride<D>() + column; }
};
/// Rows without room between them, the vectors of a row in another order. `column` is a multiple of 8.
template <int D>
struct Swizzled {
    static __host__ __device__ constexpr int at(int row, int column) {
        return row * D + (column ^ (D % 64 == 0 ? row % 8 : row / 2 % 4) * 8);
    }
};

/// Starts copying kRows rows of x [rows, D]; `at(i)` says which is the i-th, -1 for zeros. All kThreads threads call.
template <int D, int kRows, int kThreads, class Layout = Padded<D>, class At>
__device__ __forceinline__ void load_rows(bf16* to, bf16 const* x, At at) {
    constexpr int kVectors = D / 8;
    static_assert(kRows * kVectors % kThreads == 0);
#pragma unroll
    for (int i = 0; i < kRows * kVectors / kThreads; ++i) {
        int const vector = i * kThreads + static_cast<int>(threadIdx.x);
        int const row = vector / kVectors, column = vector % kVectors * 8;
        auto const from = at(row);
        copy_16(to + Layout::at(row, column), x + int64_t{from >= 0 ? from : 0} * D + column, from >= 0);
    }
}

/// The fragment of rows [row, row + 16), columns [16 step, 16 step + 16) as left factor.
template <int D, class Layout = Padded<D>>
__device__ __forceinline__ void load_left(uint32_t (&a)[4], bf16 const* tile, int row, int step) {
    int const lane = threadIdx.x % 32;
    load_matrices(a, shared_address(tile + Layout::at(row + lane % 16, step * 16 + lane / 16 * 8)));
}

/// s [16, 64] += a [16, 16] * (columns [16 step, ...) of the 64 rows of the tile, transposed).
template <int D, class Layout = Padded<D>>
__device__ __forceinline__ void multiply_rows(float (&s)[32], uint32_t const (&a)[4], bf16 const* tile, int step) {
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
        uint32_t b[4];
        int const row = pair * 16 + lane / 16 * 8 + lane % 8, column = step * 16 + lane / 8 % 2 * 8;
        load_matrices(b, shared_address(tile + Layout::at(row, column)));
        mma(s + 8 * pair, a, b[0], b[1]);
        mma(s + 8 * pair + 4, a, b[2], b[3]);
    }
}

/// The same for kStrips strips of 16 rows that share the right factor.
template <int D, int kStrips, class Layout = Padded<D>>
__device__ __forceinline__ void multiply_rows(float (&s)[kStrips][32], uint32_t const (&a)[kStrips][4],
                                              bf16 const* tile, int step) {
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
        uint32_t b[4];
        int const row = pair * 16 + lane / 16 * 8 + lane % 8, column = step * 16 + lane / 8 % 2 * 8;
        load_matrices(b, shared_address(tile + Layout::at(row, column)));
#pragma unroll
        for (int m = 0; m < kStrips; ++m) {
            mma(s[m] + 8 * pair, a[m], b[0], b[1]);
            mma(s[m] + 8 * pair + 4, a[m], b[2], b[3]);
        }
    }
}

/// o [16, D] += a [16, 16] * (rows [16 step, 16 step + 16) of the tile), for kStrips strips of rows.
template <int D, int kStrips, class Layout = Padded<D>>
__device__ __forceinline__ void accumulate(float (&o)[kStrips][D / 2], uint32_t const (&a)[kStrips][4],
                                           bf16 const* tile, int step) {
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < D / 16; ++pair) {
        uint32_t b[4];
        load_transposed(b, tile + Layout::at(step * 16 + lane % 16, pair * 16 + lane / 16 * 8));
#pragma unroll
        for (int m = 0; m < kStrips; ++m) {
            mma(o[m] + 8 * pair, a[m], b[0], b[1]);
            mma(o[m] + 8 * pair + 4, a[m], b[2], b[3]);
        }
    }
}

/// [16, 64] scores of one warp: a [16, D] strip of `left` against the 64 rows of `right`.
template <int D, class Layout = Padded<D>>
__device__ __forceinline__ void score(float (&s)[32], bf16 const* left, int row, bf16 const* right) {
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        uint32_t a[4];
        load_left<D, Layout>(a, left, row, step);
        multiply_rows<D, Layout>(s, a, right, step);
    }
}

/// o [16, D] += s [16, 64], rounded, times the 64 rows of `right`.
template <int D, class Layout = Padded<D>>
__device__ __forceinline__ void weigh(float (&o)[1][D / 2], float const (&s)[32], bf16 const* right) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        uint32_t a[1][4];
        to_left(a[0], s, step);
        accumulate<D, 1, Layout>(o, a, right, step);
    }
}

/// The lane's part of one of its two rows of o [16, D] += weight times a row of bf16.
template <int D>
__device__ __forceinline__ void add_row(float (&o)[D / 2], int half, bf16 const* row, float weight) {
    auto const* const from = reinterpret_cast<uint32_t const*>(row) + threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
        o[4 * n + 2 * half] += weight * low(from[n * 4]);
        o[4 * n + 2 * half + 1] += weight * high(from[n * 4]);
    }
}
/// Writes it, times `factor`; `add`: to what is there.
template <int D>
__device__ __forceinline__ void write_row(bf16* row, float const (&o)[D / 2], int half, float factor,
                                          bool add = false) {
    auto* const to = reinterpret_cast<uint32_t*>(row) + threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
        uint32_t const before = add ? to[n * 4] : 0x80008000;  // minus zero, which changes nothing
        to[n * 4] = pack(low(before) + o[4 * n + 2 * half] * factor, high(before) + o[4 * n + 2 * half + 1] * factor);
    }
}

}  // namespace perigee::ampere
