// Operand tiles in shared memory, as the tensor cores and TMA like them best. A tile [rows, columns] of
// bf16 is ceil(columns / 64) panels one after the other; a panel has 128 bytes a row, and the 16-byte vector v of row r
// lies at vector v ^ (r % 8) ("128-byte swizzle"), so that the vectors of one column in eight rows lie in all banks.
// Tiles begin at multiples of 1024 bytes.
#pragma once

#include <cstdint>

#include "base/bf16.h"
#include "kernels/common/fragments.cuh"
#include "kernels/hopper/barrier.cuh"

namespace perigee::hopper {

using kernels::load_matrices, kernels::pack, kernels::to_left;

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kTileAlignment = 1024;

template <int kRows>
__host__ __device__ constexpr int panel_bytes() {
    return kRows * kPanelRowBytes;
}
/// Panels of a tile. The last one may be half full; the rest is zeros.
template <int kColumns>
inline constexpr int kPanels = (kColumns + kPanelColumns - 1) / kPanelColumns;
template <int kRows, int kColumns>
__host__ __device__ constexpr int tile_bytes() {
    static_assert(kRows % 8 == 0);
    return kPanels<kColumns> * panel_bytes<kRows>();
}

/// Bytes from the beginning of a tile of kRows rows to the eight numbers (row, 8 piece ... 8 piece + 7).
template <int kRows>
__host__ __device__ __forceinline__ constexpr uint32_t swizzled_offset(int row, int piece) {
    return static_cast<uint32_t>(piece / 8 * panel_bytes<kRows>() + row * kPanelRowBytes +
                                 ((piece % 8) ^ (row % 8)) * 16);
}

/// The shared memory a launch asks for, as a T that begins with tiles.
template <class T>
__device__ __forceinline__ T& dynamic_tiles() {
    extern __shared__ __align__(kTileAlignment) unsigned char tiles[];
    return *reinterpret_cast<T*>(tiles);
}

/// Starts copying 16 bytes into a piece, or zeros where not `there`; `from` is then not read.
__device__ __forceinline__ void copy_vector(uint32_t to, void const* from, bool there) {
    asm volatile(
        "{\n.reg .pred none;\nsetp.eq.u32 none, %2, 0;\n"
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, none;\n}" ::"r"(to),
        "l"(from), "r"(uint32_t{there})
        : "memory");
}

/// The warp's rows [row, row + 16) of a tile as left factors of products, kSteps times 16 columns.
template <int kRows, int kSteps>
__device__ __forceinline__ void load_left(uint32_t (&a)[kSteps][4], uint32_t tile, int row) {
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
        load_matrices(a[step], tile + swizzled_offset<kRows>(row + lane % 16, step * 2 + lane / 16));
}

/// Stores each warpgroup's left factor [64, kRows] transposed into one tile [kRows, 64 times the warpgroups], the
/// second warpgroup's columns after the first's. The thread block's first threads call, each with its number. PTX ISA,
/// "stmatrix".
template <int kRows, int kSteps>
__device__ __forceinline__ void store_transposed(uint32_t tile, uint32_t thread, uint32_t const (&x)[kSteps][4]) {
    static_assert(kSteps * 16 == kRows);
    int const row = static_cast<int>(thread % 32 / 16 * 8 + thread % 8);
    int const piece = static_cast<int>(thread / 32 * 2 + thread % 16 / 8);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         tile + swizzled_offset<kRows>(16 * step + row, piece)),
                     "r"(x[step][0]), "r"(x[step][1]), "r"(x[step][2]), "r"(x[step][3])
                     : "memory");
}

/// Rows [from, kRows) of a tile that TMA has filled become zeros, for the tensor cores. A warp's business.
template <int kRows, int kColumns>
__device__ void clear_rows(unsigned char* tile, int from) {
    constexpr int kPieces = kPanelRowBytes / 16;
#pragma unroll 1
    for (int panel = 0; panel < kPanels<kColumns>; ++panel)
#pragma unroll 1
        for (int i = from * kPieces + static_cast<int>(threadIdx.x % 32); i < kRows * kPieces; i += 32)
            reinterpret_cast<uint4*>(tile + panel * panel_bytes<kRows>())[i] = make_uint4(0, 0, 0, 0);
    fence_shared_for_async();
    __syncwarp();
}

}  // namespace perigee::hopper
