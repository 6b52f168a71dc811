// Launches of the kernels, whose one argument is a struct passed by value.
#pragma once

#include <algorithm>
#include <climits>

#include "kernels/block_sparse_attention/stages.h"
#include "kernels/common/follow.cuh"

namespace perigee::block_sparse {

using kernels::ceil_div;

/// A grid of `x` times `y` times `z` blocks; none is fine.
struct Launch {
    char const* name;
    int64_t x;
    int64_t y;
    int threads;
    size_t shared_bytes;
    cudaStream_t stream;
    int64_t z = 1;
    bool early = false;  ///< thread blocks may come while the kernel before still runs: start_early is called first
};

/// The first act of a kernel that is launched `early`, in every thread: until the kernels before it are done. The next
/// one's thread blocks may come meanwhile.
__device__ __forceinline__ void start_early() {
    kernels::let_next_begin();
    kernels::wait_for_previous();
}

template <class Args>
void launch(Launch const& how, void (*kernel)(Args const), Args const& args) {
    if (how.x == 0 || how.y == 0 || how.z == 0) return;
    if (how.shared_bytes > 48 << 10)
        check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(how.shared_bytes)),
                   how.name);
    // What no grid can have is refused by the launch.
    auto const extent = [](int64_t blocks) { return static_cast<unsigned>(std::min<int64_t>(blocks, UINT_MAX)); };
    cudaLaunchAttribute early = kernels::early_launch();
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(extent(how.x), extent(how.y), extent(how.z));
    config.blockDim = dim3(static_cast<unsigned>(how.threads));
    config.dynamicSmemBytes = how.shared_bytes;
    config.stream = how.stream;
    config.attrs = &early;
    config.numAttrs = how.early ? 1 : 0;
    check_cuda(cudaLaunchKernelEx(&config, kernel, args), how.name);
    kernels::check_launch(how.name);
}

/// Whether kernels can be launched early.
inline bool starts_early(BlockSparseShape const& shape) { return shape.arch == KernelArch::sm90; }

/// Calls f.operator()<D>() for the head size; plan_attention has refused all others.
template <class F>
void with_head_dim(int64_t head_dim, F f) {
    switch (head_dim) {
        case 32:
            return f.template operator()<32>();
        case 64:
            return f.template operator()<64>();
        case 96:
            return f.template operator()<96>();
        default:
            return f.template operator()<128>();
    }
}

}  // namespace perigee::block_sparse
