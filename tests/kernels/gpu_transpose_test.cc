// Matrices in fp32 turned on a GPU, at sizes around that of a tile: every element is moved, none beside them.
#include <gtest/gtest.h>

#include <array>

#include "kernels/flat/flat.h"
#include "kernels/gpu_moba.h"

namespace perigee {
namespace {

using testing::GpuArray;

TEST(GpuTranspose, MovesEveryElement) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    CudaDevice device(0);
    for (auto const& [matrices, rows, columns] :
         {std::array<int64_t, 3>{1, 1, 1}, {3, 32, 32}, {2, 33, 31}, {5, 512, 24}, {1, 1000, 65}, {70000, 2, 3}}) {
        int64_t const count = matrices * rows * columns;
        std::vector<float> from, expected(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) from.push_back(static_cast<float>(i));
        for (int64_t i = 0; i < count; ++i) {
            int64_t const m = i / (rows * columns), r = i / columns % rows, c = i % columns;
            expected[static_cast<size_t>((m * columns + c) * rows + r)] = from[static_cast<size_t>(i)];
        }
        GpuArray<float> const source(device, from), turned(device, count);
        kernels::transpose(
            {.to = turned.data(), .from = source.data(), .matrices = matrices, .rows = rows, .columns = columns},
            device.stream());
        EXPECT_EQ(turned.get(), expected) << matrices << " of " << rows << " x " << columns;
    }
}

}  // namespace
}  // namespace perigee
