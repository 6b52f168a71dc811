// What launches of kernels share, for the host compiler too.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace perigee::moba {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// A grid of `x` times `y` blocks; none is fine.
struct Launch {
    char const* name;
    int64_t x;
    int64_t y;
    int threads;
    size_t shared_bytes;
    cudaStream_t stream;
};

// Throw Category::internal. In launch.cc: nvcc does not take fmt's format strings.
void check_launch(Launch const& how);
void check_cuda_call(cudaError_t code, char const* name);
[[noreturn]] void refuse_head_dim(int64_t head_dim);

}  // namespace perigee::moba
