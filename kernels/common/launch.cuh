// Launches by name, of kernels that take their arguments by value.
#pragma once

#include <algorithm>
#include <climits>

#include "kernels/common/follow.cuh"

namespace perigee::kernels {

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
    let_next_begin();
    wait_for_previous();
}

template <class Args>
void launch(Launch const& how, void (*kernel)(Args const), Args const& args) {
    if (how.x == 0 || how.y == 0 || how.z == 0) return;
    if (how.shared_bytes > 48 << 10) allow_shared(kernel, how.shared_bytes);
    // What no grid can have is refused by the launch.
    auto const extent = [](int64_t blocks) { return static_cast<unsigned>(std::min<int64_t>(blocks, UINT_MAX)); };
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(extent(how.x), extent(how.y), extent(how.z));
    config.blockDim = dim3(static_cast<unsigned>(how.threads));
    config.dynamicSmemBytes = how.shared_bytes;
    config.stream = how.stream;
    config.attrs = &early;
    config.numAttrs = how.early && built_for() >= BuiltFor::early ? 1 : 0;
    check_cuda(cudaLaunchKernelEx(&config, kernel, args), how.name);
}

}  // namespace perigee::kernels
