// What the log says of the kernels that a GPU gets.
#include "ops/gpu_kernels.h"

#include <gmock/gmock.h>

namespace perigee {
namespace {

using kernels::BuiltFor;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(KernelsOfAGpu, NothingIsSlowerWhereTheyAreItsOwn) {
    EXPECT_EQ(to_string(GpuKernels{90, BuiltFor::hopper, 227 << 10, true}),
              "for compute capability 9.0a on a GPU of 9.0, 227 KiB of shared memory a block");
}

TEST(KernelsOfAGpu, SaysWhatIsSlower) {
    std::string const a100 = to_string(GpuKernels{80, BuiltFor::ampere, 163 << 10, true});
    EXPECT_THAT(a100, HasSubstr("slower here: MoBA, by mma.sync instead of wgmma; the backward of RMSNorm"));
    EXPECT_THAT(a100, Not(HasSubstr("embedding")));
    std::string const l40s = to_string(GpuKernels{89, BuiltFor::ampere, 99 << 10, false});
    EXPECT_THAT(l40s, HasSubstr("for compute capability 8.0 on a GPU of 8.9, 99 KiB"));
    EXPECT_THAT(l40s, HasSubstr("without cuDNN"));
    EXPECT_THAT(l40s, HasSubstr("and of the embedding"));
}

TEST(KernelsOfAGpu, AHopperGpuWithoutCodeOfItsOwnIsToldWhatToBuild) {
    EXPECT_THAT(to_string(GpuKernels{90, BuiltFor::ampere, 227 << 10, true}),
                HasSubstr("no code for 9.0a (CMAKE_CUDA_ARCHITECTURES=90a)"));
}

TEST(KernelsOfAGpu, TheCpuHasNone) { EXPECT_FALSE(gpu_kernels(*make_host_device())); }

}  // namespace
}  // namespace perigee
