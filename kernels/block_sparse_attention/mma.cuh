// The few instructions the tiles are made of: matrix products of a warp on bf16 fragments, loads of fragments from
// shared memory, and copies from global to shared memory that do not wait.
// Fragment layouts: PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
#pragma once

#include <cstdint>

namespace perigee::block_sparse {

/// Four 8 x 8 matrices of bf16; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix(uint32_t (&x)[4], void const* row) {
    auto const at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&x)[4], void const* row) {
    auto const at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

/// c [16, 8] += a [16, 16] b [16, 8].
__device__ __forceinline__ void mma(float (&c)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// 16 or 4 bytes, or zeros where not `there`; `from` is then not read.
__device__ __forceinline__ void copy_16(void* to, void const* from, bool there) {
    auto const at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_4(void* to, void const* from, bool there) {
    auto const at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(there ? 4 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Two numbers rounded to bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ __forceinline__ float low(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

/// The shared memory a launch asks for.
__device__ __forceinline__ unsigned char* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char memory[];
    return memory;
}

}  // namespace perigee::block_sparse
