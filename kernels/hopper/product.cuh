// Matrix products of a warpgroup (wgmma): d [64, N] fp32 in registers += a [64, 16] b [16, N], bf16, asynchronous. PTX
// ISA, "Asynchronous warpgroup level matrix instructions".
//
// Result layout: warp w of the warpgroup holds rows 16 w to 16 w + 15. Lane l's d[4 j + i] is column 8 j + l % 4 * 2 +
// i % 2 of row 16 w + l / 4 + i / 2 * 8. Left factors in registers have the same layout, rounded to bf16: columns 16 s
// to 16 s + 15 of a result are {pack(d[8 s], d[8 s + 1]), pack(d[8 s + 2], d[8 s + 3]), pack(d[8 s + 4], d[8 s + 5]),
// pack(d[8 s + 6], d[8 s + 7])}.
//
// Order: products_begin, products, products_commit, and products_wait before results are read or factors overwritten.
#pragma once

#include <cstdint>

#include "kernels/hopper/tile.cuh"

namespace perigee::hopper {

/// Which way the summed index runs in a factor's tile: along its columns (as in q k^T) or along its rows (as v in p v).
enum class Inner { columns, rows };

/// A matrix descriptor: its first byte is `bytes`, best a constant, after the beginning of a tile.
__device__ __forceinline__ uint64_t factor_at(uint32_t tile, uint32_t leading_bytes, int bytes) {
    uint32_t const low = ((tile & 0x3ffff) >> 4 | leading_bytes >> 4 << 16) + static_cast<uint32_t>(bytes >> 4);
    uint32_t constexpr kHigh = 1u << 30 | 1024 >> 4;
    return uint64_t{kHigh} << 32 | low;
}

/// x, which is the same in all lanes of a warp, told so to the compiler: descriptors made from it are then computed
/// once for the warp, not in every lane. All lanes call.
template <class T>
__device__ __forceinline__ T uniform(T x) {
    return __shfl_sync(~0u, x, 0);
}

/// What the tensor cores are told of a factor: its first byte, strides in 16 bytes and the swizzle. PTX ISA, "Matrix
/// descriptor". Step s means numbers 16 s to 16 s + 15 of the summed index.
/// Inner::columns: rows [row, row + 64) of a left or [row, row + N) of a right factor, `row` a multiple of 8.
/// Inner::rows: columns [64 panel, ...) of the tile; rows are the summed index.
template <int kRows>
__device__ __forceinline__ uint64_t columns_factor(uint32_t tile, int row, int step) {
    return factor_at(tile, 16, step / 4 * panel_bytes<kRows>() + row * kPanelRowBytes + step % 4 * 32);
}
template <int kRows>
__device__ __forceinline__ uint64_t rows_factor(uint32_t tile, int panel, int step) {
    return factor_at(tile, panel_bytes<kRows>(), panel * panel_bytes<kRows>() + step * 16 * kPanelRowBytes);
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most kPending committed groups are under way.
template <int kPending>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of d across the calls around it.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Forces x, which must not be negative, to be computed before what follows. No fence stops the assembler from moving
/// products_wait ahead of arithmetic that should overlap with the products. A store predicated on x < 0, which never
/// happens, does; a branch would leave fewer registers.
__device__ __forceinline__ void settle(float x) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.f32 [%1], %0;\n}" ::"f"(x), "r"(0));
}

/// The instruction: `issue` adds to d where `accumulate`; `first` makes d = a b and leaves the compiler free to use d's
/// registers for something else beforehand. Both factors in shared memory, or the left one in registers.
template <int N, Inner kInnerA, Inner kInnerB>
struct Product;
template <int N, Inner kInnerB>
struct RegisterProduct;

template <Inner kInnerA, Inner kInnerB>
struct Product<64, kInnerA, kInnerB> {
    __device__ static __forceinline__ void issue(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "%32, %33, p, 1, 1, %35, %36;\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
            : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int{kInnerA == Inner::rows}), "n"(int{kInnerB == Inner::rows}));
    }
    __device__ static __forceinline__ void first(float (&d)[32], uint64_t a, uint64_t b) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "%32, %33, p, 1, 1, %34, %35;\n}"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
              "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
              "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
              "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
            : "l"(a), "l"(b), "n"(int{kInnerA == Inner::rows}), "n"(int{kInnerB == Inner::rows}));
    }
};
template <Inner kInnerB>
struct RegisterProduct<64, kInnerB> {
    __device__ static __forceinline__ void issue(float (&d)[32], uint32_t const (&a)[4], uint64_t b, bool accumulate) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{accumulate}),
              "n"(int{kInnerB == Inner::rows}));
    }
    __device__ static __forceinline__ void first(float (&d)[32], uint32_t const (&a)[4], uint64_t b) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "{%32, %33, %34, %35}, %36, p, 1, 1, %37;\n}"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
              "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
              "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
              "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int{kInnerB == Inner::rows}));
    }
};

template <Inner kInnerB>
struct RegisterProduct<96, kInnerB> {
    __device__ static __forceinline__ void issue(float (&d)[48], uint32_t const (&a)[4], uint64_t b, bool accumulate) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
            "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
            "{%48, %49, %50, %51}, %52, p, 1, 1, %54;\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
              "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
              "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{accumulate}),
              "n"(int{kInnerB == Inner::rows}));
    }
};

template <Inner kInnerA, Inner kInnerB>
struct Product<128, kInnerA, kInnerB> {
    __device__ static __forceinline__ void issue(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
            "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
            "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "%64, %65, p, 1, 1, %67, %68;\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
              "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
              "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
              "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
              "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
            : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int{kInnerA == Inner::rows}), "n"(int{kInnerB == Inner::rows}));
    }
    __device__ static __forceinline__ void first(float (&d)[64], uint64_t a, uint64_t b) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
            "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
            "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "%64, %65, p, 1, 1, %66, %67;\n}"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
              "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
              "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
              "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31]),
              "=f"(d[32]), "=f"(d[33]), "=f"(d[34]), "=f"(d[35]), "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39]),
              "=f"(d[40]), "=f"(d[41]), "=f"(d[42]), "=f"(d[43]), "=f"(d[44]), "=f"(d[45]), "=f"(d[46]), "=f"(d[47]),
              "=f"(d[48]), "=f"(d[49]), "=f"(d[50]), "=f"(d[51]), "=f"(d[52]), "=f"(d[53]), "=f"(d[54]), "=f"(d[55]),
              "=f"(d[56]), "=f"(d[57]), "=f"(d[58]), "=f"(d[59]), "=f"(d[60]), "=f"(d[61]), "=f"(d[62]), "=f"(d[63])
            : "l"(a), "l"(b), "n"(int{kInnerA == Inner::rows}), "n"(int{kInnerB == Inner::rows}));
    }
};
template <Inner kInnerB>
struct RegisterProduct<128, kInnerB> {
    __device__ static __forceinline__ void issue(float (&d)[64], uint32_t const (&a)[4], uint64_t b, bool accumulate) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
            "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
            "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
              "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
              "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
              "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
              "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{accumulate}),
              "n"(int{kInnerB == Inner::rows}));
    }
    __device__ static __forceinline__ void first(float (&d)[64], uint32_t const (&a)[4], uint64_t b) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
            "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
            "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "{%64, %65, %66, %67}, %68, p, 1, 1, %69;\n}"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
              "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
              "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
              "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31]),
              "=f"(d[32]), "=f"(d[33]), "=f"(d[34]), "=f"(d[35]), "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39]),
              "=f"(d[40]), "=f"(d[41]), "=f"(d[42]), "=f"(d[43]), "=f"(d[44]), "=f"(d[45]), "=f"(d[46]), "=f"(d[47]),
              "=f"(d[48]), "=f"(d[49]), "=f"(d[50]), "=f"(d[51]), "=f"(d[52]), "=f"(d[53]), "=f"(d[54]), "=f"(d[55]),
              "=f"(d[56]), "=f"(d[57]), "=f"(d[58]), "=f"(d[59]), "=f"(d[60]), "=f"(d[61]), "=f"(d[62]), "=f"(d[63])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int{kInnerB == Inner::rows}));
    }
};

template <Inner kInnerA, Inner kInnerB, int kCount>
__device__ __forceinline__ void multiply(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
    Product<2 * kCount, kInnerA, kInnerB>::issue(d, a, b, accumulate);
}
template <Inner kInnerA, Inner kInnerB, int kCount>
__device__ __forceinline__ void multiply_first(float (&d)[kCount], uint64_t a, uint64_t b) {
    Product<2 * kCount, kInnerA, kInnerB>::first(d, a, b);
}
template <Inner kInnerB, int kCount>
__device__ __forceinline__ void multiply_first(float (&d)[kCount], uint32_t const (&a)[4], uint64_t b) {
    RegisterProduct<2 * kCount, kInnerB>::first(d, a, b);
}
template <Inner kInnerB, int kCount>
__device__ __forceinline__ void multiply(float (&d)[kCount], uint32_t const (&a)[4], uint64_t b, bool accumulate) {
    RegisterProduct<2 * kCount, kInnerB>::issue(d, a, b, accumulate);
}

/// Starts d = the sum over kSteps steps of left(step) right(step), both descriptors, as one group.
template <Inner kInnerA, Inner kInnerB, int kSteps, int kCount, class Left, class Right>
__device__ __forceinline__ void start_products(float (&d)[kCount], Left left, Right right) {
    products_begin();
    multiply_first<kInnerA, kInnerB>(d, left(0), right(0));
#pragma unroll
    for (int step = 1; step < kSteps; ++step) multiply<kInnerA, kInnerB>(d, left(step), right(step), true);
    products_commit();
}
/// The same with left factors in registers.
template <Inner kInnerB, int kCount, int kSteps, class Right>
__device__ __forceinline__ void start_products(float (&d)[kCount], uint32_t const (&left)[kSteps][4], Right right) {
    products_begin();
    multiply_first<kInnerB>(d, left[0], right(0));
#pragma unroll
    for (int step = 1; step < kSteps; ++step) multiply<kInnerB>(d, left[step], right(step), true);
    products_commit();
}
/// Starts d += them where `accumulate`, else d = them. What uses d is done before.
template <Inner kInnerB, int kCount, int kSteps, class Right>
__device__ __forceinline__ void add_products(float (&d)[kCount], uint32_t const (&left)[kSteps][4], Right right,
                                             bool accumulate) {
    pin(d);
    products_begin();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) multiply<kInnerB>(d, left[step], right(step), step > 0 || accumulate);
    products_commit();
}

/// The same with left factors in shared memory, always adding.
template <Inner kInnerA, Inner kInnerB, int kSteps, int kCount, class Left, class Right>
__device__ __forceinline__ void add_products(float (&d)[kCount], Left left, Right right) {
    pin(d);
    products_begin();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) multiply<kInnerA, kInnerB>(d, left(step), right(step), true);
    products_commit();
}

}  // namespace perigee::hopper
