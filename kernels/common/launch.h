// What every launch needs: sizes of grids, and the check that the launch was accepted.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "device/cuda/cuda_device.h"

namespace perigee::kernels {

constexpr int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }
constexpr int64_t round_up(int64_t n, int64_t multiple) { return ceil_div(n, multiple) * multiple; }

/// An attribute of the current GPU.
inline int attribute(cudaDeviceAttr what) {
    int device = 0, value = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&value, what, device), "cudaDeviceGetAttribute");
    return value;
}

inline int64_t multiprocessors() { return attribute(cudaDevAttrMultiProcessorCount); }

/// Lets a kernel have `bytes` of dynamic shared memory.
template <class... Args>
void allow_shared(void (*kernel)(Args...), size_t bytes) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<void const*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "cudaFuncSetAttribute");
}

/// Blocks of a kernel that the GPU works on at a time, each with `shared` bytes of dynamic shared memory.
template <class... Args>
int64_t resident_blocks(void (*kernel)(Args...), unsigned threads, size_t shared) {
    allow_shared(kernel, shared);
    int blocks = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reinterpret_cast<void const*>(kernel),
                                                             static_cast<int>(threads), shared),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return multiprocessors() * blocks;
}

inline void check_launch(char const* kernel) { check_cuda(cudaGetLastError(), kernel); }

/// Whether rows of `width` values of bf16 or fp32 can be moved by runs of eight: 16-byte accesses.
inline bool in_runs_of_eight(int64_t width, std::initializer_list<void const*> pointers) {
    for (void const* pointer : pointers)
        if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return false;
    return width % 8 == 0;
}

}  // namespace perigee::kernels
