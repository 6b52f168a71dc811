// A thread block of 256 threads quantises a 128 x 128 tile. Each half-warp handles eight rows, each thread eight
// columns of them.
#pragma once

#include <cuda_fp8.h>

#include "base/fp8.h"
#include "kernels/common/launch.h"
#include "kernels/common/vector.cuh"
#include "kernels/quantize/quantize.h"

namespace perigee::kernels::quantizing {

constexpr int kTile = 128, kThreads = 256, kRows = 8, kColumns = 8, kWarps = kThreads / 32;

/// Eight E4M3 bytes.
struct Octet {
    uint32_t words[2];
};

struct Place {
    int half, lane;  ///< index of the half-warp, and of the lane in it
    __device__ Place() : half(static_cast<int>(threadIdx.x) / 16), lane(static_cast<int>(threadIdx.x) % 16) {}
    __device__ int row(int i) const { return half * kRows + i; }
    __device__ int column() const { return lane * kColumns; }
};

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

/// The largest magnitude of eight bf16 values, as the bits of an fp32 number.
__device__ __forceinline__ uint32_t magnitude(Run<bf16, 8> const& run) {
    uint4 const words = reinterpret_cast<uint4 const&>(run);
    constexpr uint32_t kMagnitudes = 0x7fff7fffu;
    uint32_t const pairs = __vmaxu2(__vmaxu2(words.x & kMagnitudes, words.y & kMagnitudes),
                                    __vmaxu2(words.z & kMagnitudes, words.w & kMagnitudes));
    return max(pairs << 16, pairs & 0xffff0000u);
}

/// Maximum over the 16 lanes of a half-warp.
__device__ __forceinline__ uint32_t largest_of_half(uint32_t x) {
#pragma unroll
    for (int mask = 8; mask > 0; mask /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
}

__device__ __forceinline__ uint32_t pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

/// Eight values, divided by the scale that `amax` gives their tile and rounded.
__device__ __forceinline__ Octet quantized(float const (&x)[8], uint32_t amax) {
    if (!is_finite_amax(amax)) return {{0x7f7f7f7fu, 0x7f7f7f7fu}};
    float const by = __uint_as_float(inverse_scale_bits(scale_bits(amax)));
    Octet octet;
#pragma unroll
    for (int j = 0; j < 2; ++j)
        octet.words[j] =
            __byte_perm(pair(x[4 * j] * by, x[4 * j + 1] * by), pair(x[4 * j + 2] * by, x[4 * j + 3] * by), 0x5410);
    return octet;
}

/// Two E4M3 bytes as fp16, exactly.
__device__ __forceinline__ __half2 halves(uint32_t two) {
    return __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two & 0xffffu), __NV_E4M3));
}

__device__ __forceinline__ void store_octet(uint8_t* to, Octet const& octet) {
    *reinterpret_cast<uint2*>(to) = make_uint2(octet.words[0], octet.words[1]);
}

/// Shared memory for transposing a tile. A row of `chunks` is a column of the tile, as 16 chunks of eight bytes. The
/// chunks are swizzled to avoid bank conflicts on both sides.
struct Shared {
    uint2 chunks[kTile][kTile / 8];
    uint32_t column_amax[kWarps][kTile];
    uint32_t tile_amax[kWarps];

    __device__ uint2& chunk(int column, int i) { return chunks[column][i ^ (column / 8 % 16)]; }
};

/// Writes the transposed tile from `shared` to rows [column, column + 128) of a matrix [., pitch], from column `row`
/// on.
__device__ __forceinline__ void write_transpose(uint8_t* to, int64_t pitch, int64_t row, int64_t column,
                                                Shared& shared) {
    int const part = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int c = static_cast<int>(threadIdx.x) / 8; c < kTile; c += kThreads / 8) {
        uint2 const low = shared.chunk(c, 2 * part), high = shared.chunk(c, 2 * part + 1);
        *reinterpret_cast<uint4*>(to + (column + c) * pitch + row + 16 * part) =
            make_uint4(low.x, low.y, high.x, high.y);
    }
}

/// Transposes a 4 x 4 matrix of bytes.
__device__ __forceinline__ void transpose_bytes(uint32_t (&x)[4]) {
    uint32_t const low = __byte_perm(x[0], x[1], 0x5140), high = __byte_perm(x[0], x[1], 0x7362);
    uint32_t const lower = __byte_perm(x[2], x[3], 0x5140), higher = __byte_perm(x[2], x[3], 0x7362);
    x[0] = __byte_perm(low, lower, 0x5410);
    x[1] = __byte_perm(low, lower, 0x7632);
    x[2] = __byte_perm(high, higher, 0x5410);
    x[3] = __byte_perm(high, higher, 0x7632);
}

/// Stores this thread's 8 x 8 bytes in `shared`, transposed.
__device__ __forceinline__ void put_transpose(Shared& shared, Place const& place, Octet const (&octets)[kRows]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        uint32_t upper[4], lower[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) upper[r] = octets[r].words[c], lower[r] = octets[r + 4].words[c];
        transpose_bytes(upper);
        transpose_bytes(lower);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            shared.chunk(place.column() + 4 * c + i, place.half) = make_uint2(upper[i], lower[i]);
    }
}

/// Writes the transpose of a tile that is all NaN.
__device__ __forceinline__ void write_nan(Quantized const& to, int64_t rows, int64_t columns, int64_t row,
                                          int64_t column) {
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kThreads)
        to.bytes[(column + i / kTile) * rows + row + i % kTile] = kE4m3Nan;
    if (threadIdx.x < kTile) to.scales[row / kTile * columns + column + threadIdx.x] = 1;
}

/// Computes and stores the scales of the tile's columns, and returns the inverse scales of this thread's columns.
/// `amax`: the largest magnitudes over this thread's rows.
__device__ __forceinline__ void scale_columns(float* scales, uint32_t (&inverse)[kColumns],
                                              float const (&amax)[kColumns], Shared& shared) {
    Place const place;
    int const warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
        float const largest = fmaxf(amax[c], __shfl_xor_sync(0xffffffffu, amax[c], 16));
        if (place.half % 2 == 0) shared.column_amax[warp][place.column() + c] = __float_as_uint(largest);
    }
    __syncthreads();
    if (threadIdx.x < kTile) {
        uint32_t largest = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) largest = max(largest, shared.column_amax[w][threadIdx.x]);
        uint32_t const scale = scale_bits(largest);
        // Dequantised values can overflow fp32 here. Such a column becomes NaN.
        constexpr uint32_t kNan = 0x7fc00000u;
        shared.column_amax[0][threadIdx.x] = is_finite_amax(largest) ? inverse_scale_bits(scale) : kNan;
        scales[threadIdx.x] = __uint_as_float(scale);
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) inverse[c] = shared.column_amax[0][place.column() + c];
}

/// Writes the transpose of a tile that has one scale per row, with one scale per column. `octets` are this thread's
/// bytes. A non-finite row makes the whole transposed tile NaN. All threads of the thread block must call it.
__device__ __forceinline__ void transpose_rows(Quantized const& to, int64_t rows, int64_t columns, int64_t row,
                                               int64_t column, Octet (&octets)[kRows], float const (&scale)[kRows],
                                               bool finite, Shared& shared) {
    if (__syncthreads_or(!finite)) return write_nan(to, rows, columns, row, column);
    Place const place;
    float amax[kColumns] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int c = 0; c < kColumns; c += 2) {
            float2 const x = __half22float2(halves(octets[r].words[c / 4] >> (c % 4 * 8)));
            amax[c] = fmaxf(amax[c], fabsf(x.x * scale[r]));
            amax[c + 1] = fmaxf(amax[c + 1], fabsf(x.y * scale[r]));
        }
    uint32_t inverse[kColumns];
    scale_columns(to.scales + row / kTile * columns + column, inverse, amax, shared);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        uint32_t pairs[4];
#pragma unroll
        for (int c = 0; c < kColumns; c += 2) {
            float2 const x = __half22float2(halves(octets[r].words[c / 4] >> (c % 4 * 8)));
            pairs[c / 2] =
                pair(x.x * scale[r] * __uint_as_float(inverse[c]), x.y * scale[r] * __uint_as_float(inverse[c + 1]));
        }
        octets[r] = {{__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410)}};
    }
    put_transpose(shared, place, octets);
    __syncthreads();
    write_transpose(to.bytes, rows, row, column, shared);
}

}  // namespace perigee::kernels::quantizing
