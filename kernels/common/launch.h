// What every launch needs: sizes of grids, and the check that the launch was accepted.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "device/cuda/cuda_device.h"
#include "kernels/common/shared_memory.h"

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

inline void check_launch(char const* kernel) { check_cuda(cudaGetLastError(), kernel); }

/// Whether rows of `width` values of bf16 or fp32 can be moved by runs of eight: 16-byte accesses.
inline bool in_runs_of_eight(int64_t width, std::initializer_list<void const*> pointers) {
    for (void const* pointer : pointers)
        if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return false;
    return width % 8 == 0;
}

}  // namespace perigee::kernels
