#include "device/peak_flops.h"

#include <gtest/gtest.h>

namespace perigee {
namespace {

TEST(PeakFlops, FollowsTheNameThatTheDriverGives) {
    EXPECT_EQ(peak_bf16_flops("NVIDIA H100 80GB HBM3"), 989.4e12);
    EXPECT_EQ(peak_bf16_flops("NVIDIA H200"), 989.4e12);
    EXPECT_EQ(peak_bf16_flops("NVIDIA H100 PCIe"), 756e12);
    EXPECT_EQ(peak_bf16_flops("NVIDIA H100 NVL"), 835e12);
    EXPECT_EQ(peak_bf16_flops("NVIDIA A100-SXM4-40GB"), 312e12);
    EXPECT_EQ(peak_bf16_flops("NVIDIA B200"), 2250e12);
    EXPECT_EQ(peak_bf16_flops("NVIDIA GeForce RTX 4090"), 165.2e12);
    EXPECT_EQ(peak_bf16_flops("NVIDIA L40S"), 362e12);
    EXPECT_EQ(peak_bf16_flops("NVIDIA L4"), 121e12);
}

TEST(PeakFlops, IsUnknownForWhatIsNotListed) {
    EXPECT_FALSE(peak_bf16_flops("cpu"));
    EXPECT_FALSE(peak_bf16_flops(""));
    EXPECT_FALSE(peak_bf16_flops("NVIDIA RTX A1000")) << "is no A100";
    EXPECT_FALSE(peak_bf16_flops("NVIDIA T400"));
}

}  // namespace
}  // namespace perigee
