#include "kernels/common/built_for.h"

#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "kernels/common/shared_memory.h"

namespace perigee::kernels {

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr BuiltFor kThis = BuiltFor::hopper;
#elif __CUDA_ARCH__ >= 900
constexpr BuiltFor kThis = BuiltFor::early;
#else
constexpr BuiltFor kThis = BuiltFor::ampere;
#endif

/// Says what it was compiled for by the number of threads it allows, which the host can read.
constexpr int kStep = 32;
constexpr int64_t kHopperShared = 227 << 10;  // of a thread block, which kernels for Hopper count on
__global__ void __launch_bounds__(kStep*(1 + static_cast<int>(kThis))) probe() {}

}  // namespace

BuiltFor built_for() {
    cudaFuncAttributes found{};
    check_cuda(cudaFuncGetAttributes(&found, probe), "cudaFuncGetAttributes");
    auto const built = static_cast<BuiltFor>(found.maxThreadsPerBlock / kStep - 1);
    return shared_of_block() < kHopperShared ? std::min(built, BuiltFor::early) : built;
}

}  // namespace perigee::kernels
