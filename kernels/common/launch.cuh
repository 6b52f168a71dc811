// Launches by name, of kernels that take their arguments by value.
#pragma once

#include <algorithm>
#include <climits>

#include "kernels/common/follow.cuh"

namespace perigee::kernels {

/// Thread blocks along each axis; none is fine.
struct Grid {
    int64_t x;
    int64_t y = 1;
    int64_t z = 1;
};

struct Launch {
    char const* name;
    Grid grid;
    int threads;
    size_t shared_bytes = 0;  ///< dynamic
    cudaStream_t stream;
    bool early = false;    ///< thread blocks may come while the kernel before still runs: start_early is called first
    unsigned cluster = 1;  ///< thread blocks per cluster, along x; grid.x is a multiple of it
};

/// The first act of a kernel that is launched `early`, in every thread: until the kernels before it are done. The next
/// one's thread blocks may come meanwhile.
__device__ __forceinline__ void start_early() {
    let_next_begin();
    wait_for_previous();
}

/// The attribute of a launch whose thread blocks come in clusters (Hopper or later).
inline cudaLaunchAttribute in_clusters(unsigned blocks) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {blocks, 1, 1};
    return attribute;
}

template <class Args>
void launch(Launch const& how, void (*kernel)(Args const), Args const& args) {
    auto const [x, y, z] = how.grid;
    if (x == 0 || y == 0 || z == 0) return;
    if (how.shared_bytes > 48 << 10) allow_shared(kernel, how.shared_bytes);
    // What no grid can have is refused by the launch.
    auto const extent = [](int64_t blocks) { return static_cast<unsigned>(std::min<int64_t>(blocks, UINT_MAX)); };
    cudaLaunchAttribute attributes[2];
    unsigned count = 0;
    if (how.early && built_for() >= BuiltFor::early) attributes[count++] = early_launch();
    if (how.cluster > 1) attributes[count++] = in_clusters(how.cluster);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(extent(x), extent(y), extent(z));
    config.blockDim = dim3(static_cast<unsigned>(how.threads));
    config.dynamicSmemBytes = how.shared_bytes;
    config.stream = how.stream;
    config.attrs = attributes;
    config.numAttrs = count;
    check_cuda(cudaLaunchKernelEx(&config, kernel, args), how.name);
}

}  // namespace perigee::kernels
