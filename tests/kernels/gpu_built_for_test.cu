// What the host believes kernels were compiled for, against what a kernel that runs was compiled for.
#include <gtest/gtest.h>

#include <array>

#include "device/cuda/cuda_device.h"
#include "kernels/common/built_for.h"
#include "kernels/common/shared_memory.h"

namespace perigee {
namespace {

using kernels::BuiltFor;

/// Version of the architecture, and whether it has the features of that GPU alone.
__global__ void look(int* found) {
#ifdef __CUDA_ARCH__
    found[0] = __CUDA_ARCH__;
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    found[1] = 1;
#else
    found[1] = 0;
#endif
}

TEST(GpuBuiltFor, IsWhatAKernelThatRunsWasCompiledFor) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    CudaDevice device(0);
    std::array<int, 2> found = {-1, -1};
    Buffer const memory(device, sizeof found);
    device.copy(memory.data(), found.data(), sizeof found);
    look<<<1, 1, 0, device.stream()>>>(static_cast<int*>(memory.data()));
    check_cuda(cudaGetLastError(), "look");
    device.copy(found.data(), memory.data(), sizeof found);
    bool const hopper = found[1] == 1 && kernels::shared_of_block() >= 227 << 10;
    BuiltFor const expected = hopper ? BuiltFor::hopper : found[0] >= 900 ? BuiltFor::early : BuiltFor::ampere;
    ASSERT_GE(found[0], 800);
    EXPECT_EQ(kernels::built_for(), expected) << found[0];
}

}  // namespace
}  // namespace perigee
