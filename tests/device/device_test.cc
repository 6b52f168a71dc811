#include <gtest/gtest.h>

#include <cstdint>

#include "base/error.h"
#include "device/device.h"
#include "support/random.h"

namespace perigee {
namespace {

/// The promises every device keeps.
void expect_keeps_data(Device& device) {
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{255}, size_t{4096}, size_t{1000003}}) {
        auto const count = static_cast<int64_t>(bytes / sizeof(double) + 1);
        auto const sent = testing::random_normal<double>(count, 31 + bytes);
        auto received = testing::poisoned<double>(count);
        Buffer const first(device, sent.size() * sizeof(double)), second(device, sent.size() * sizeof(double));
        for (Buffer const* buffer : {&first, &second}) {
            ASSERT_NE(buffer->data(), nullptr);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0u);
        }
        device.copy(first.data(), sent.data(), first.bytes());
        device.copy(second.data(), first.data(), first.bytes());
        device.copy(received.data(), second.data(), first.bytes());
        EXPECT_EQ(received, sent);
    }
    Buffer const empty(device, 0);
    EXPECT_NE(empty.data(), nullptr);
}

Category category_of(auto&& call) {
    try {
        call();
    } catch (Error const& error) {
        return error.category();
    }
    ADD_FAILURE() << "no error";
    return Category::hang;
}

TEST(HostDevice, KeepsDataAlignedAndUnchanged) {
    auto host = make_host_device();
    EXPECT_TRUE(host->is_host());
    EXPECT_EQ(host->name(), "cpu");
    expect_keeps_data(*host);
}

TEST(Buffer, MovesOwnershipAndReleasesOnce) {
    auto host = make_host_device();
    Buffer a(*host, 64);
    void* const memory = a.data();
    Buffer b(std::move(a));
    EXPECT_EQ(b.data(), memory);
    a = std::move(b);
    EXPECT_EQ(a.data(), memory);
    EXPECT_EQ(a.bytes(), 64u);
}

TEST(CudaDevice, IsAConfigErrorWhereThereIsNone) {
    EXPECT_EQ(category_of([] { make_cuda_device(cuda_device_count()); }), Category::config);
    EXPECT_EQ(category_of([] { make_cuda_device(-1); }), Category::config);
}

class GpuDevice : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU, or a build without CUDA";
    }
};

TEST_F(GpuDevice, KeepsDataAlignedAndUnchanged) {
    for (int index = 0; index < cuda_device_count(); ++index) {
        auto gpu = make_cuda_device(index);
        EXPECT_FALSE(gpu->is_host());
        EXPECT_FALSE(gpu->name().empty());
        expect_keeps_data(*gpu);
    }
}

TEST_F(GpuDevice, SaysSoWhenMemoryIsExhaustedAndStaysUsable) {
    auto gpu = make_cuda_device(0);
    EXPECT_EQ(category_of([&] { gpu->allocate(size_t{1} << 50); }), Category::memory);
    auto const beyond = static_cast<size_t>(gpu->total_bytes()) + 1;
    EXPECT_EQ(category_of([&] { gpu->allocate(beyond); }), Category::memory);
    expect_keeps_data(*gpu);
}

}  // namespace
}  // namespace perigee
