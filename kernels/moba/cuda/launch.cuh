// Launches a kernel and turns an error into an Error.
#pragma once

#include "kernels/moba/cuda/launch.h"

namespace perigee::moba {

template <class Args>
void launch(Launch const& how, void (*kernel)(Args const), Args const& args) {
    if (how.x == 0 || how.y == 0) return;
    check_launch(how);
    if (how.shared_bytes > 48 << 10)
        check_cuda_call(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(how.shared_bytes)),
                        how.name);
    dim3 const grid(static_cast<unsigned>(how.x), static_cast<unsigned>(how.y));
    kernel<<<grid, how.threads, how.shared_bytes, how.stream>>>(args);
    check_cuda_call(cudaGetLastError(), how.name);
}

/// Calls f.operator()<D>() for the head size.
template <class F>
void with_head_dim(int64_t head_dim, F f) {
    switch (head_dim) {
        case 32: return f.template operator()<32>();
        case 64: return f.template operator()<64>();
        case 96: return f.template operator()<96>();
        case 128: return f.template operator()<128>();
        default: refuse_head_dim(head_dim);
    }
}

}  // namespace perigee::moba
