// The shared memory that kernels may have, on the GPU and where the environment makes it less.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "device/device.h"
#include "kernels/common/built_for.h"
#include "kernels/common/shared_memory.h"

namespace perigee {
namespace {

using namespace kernels;

/// PERIGEE_SHARED_MEMORY_KIB, as it was afterwards.
class GpuSharedMemory : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
        device_ = make_cuda_device(0);
        if (char const* const before = std::getenv(kName)) before_ = before;
    }
    void TearDown() override {
        if (before_.empty())
            unsetenv(kName);
        else
            leave(before_);
    }
    static void leave(std::string const& kib) { setenv(kName, kib.c_str(), 1); }

  private:
    static constexpr char const* kName = "PERIGEE_SHARED_MEMORY_KIB";
    std::unique_ptr<Device> device_;
    std::string before_;
};

TEST_F(GpuSharedMemory, OfABlockIsWhatTheEnvironmentLeaves) {
    leave("100000");
    int64_t const all = shared_of_block();
    ASSERT_GE(all, static_cast<int64_t>(kLeastShared));
    EXPECT_GT(shared_of_multiprocessor(), all);
    leave("99");
    EXPECT_EQ(shared_of_block(), 99 << 10);
    EXPECT_EQ(shared_of_multiprocessor(), 100 << 10);
}

TEST_F(GpuSharedMemory, WithoutThatOfHopperItsKernelsDoNotRun) {
    leave("226");
    EXPECT_LE(built_for(), BuiltFor::early);
}

TEST_F(GpuSharedMemory, ALimitThatNoGpuHasIsRefused) {
    for (char const* const kib : {"98", "0", "-1", "many"}) {
        leave(kib);
        EXPECT_THROW(shared_of_block(), Error) << kib;
    }
}

}  // namespace
}  // namespace perigee
