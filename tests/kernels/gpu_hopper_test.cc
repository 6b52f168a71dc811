// The vocabulary of kernels/hopper against plain products. Factors are small whole numbers, so that every result is
// exact in fp32 and compared for equality.
#include <gtest/gtest.h>

#include "base/philox.h"
#include "kernels/common/built_for.h"
#include "kernels/gpu_moba.h"
#include "kernels/hopper_probe.h"

namespace perigee {
namespace {

using testing::GpuArray;
using testing::HopperProbe;

std::vector<bf16> small_numbers(int64_t count, uint64_t stream) {
    Philox const random(3, Purpose::mock_data, stream);
    std::vector<bf16> x;
    for (int64_t i = 0; i < count; ++i)
        x.push_back(to_bf16(static_cast<float>(static_cast<int>(random.below(static_cast<uint64_t>(i), 9)) - 4)));
    return x;
}

struct Expected {
    std::vector<float> scores, outputs, transposed;
};

class GpuHopper : public ::testing::TestWithParam<int64_t> {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0 || kernels::built_for() != kernels::BuiltFor::hopper)
            GTEST_SKIP() << "no Hopper GPU, or not built for it";
    }
};

TEST_P(GpuHopper, ProductsOfGatheredAndCopiedTiles) {
    int64_t const D = GetParam(), rows = 200, heads = 3, first = 101, head = 2, sources = 300;
    auto const a = small_numbers(sources * D, 1), b = small_numbers(rows * heads * D, 2),
               v = small_numbers(rows * heads * D, 3);
    std::vector<int32_t> gather;
    Philox const random(4, Purpose::mock_data);
    for (uint64_t i = 0; i < 128; ++i) gather.push_back(static_cast<int32_t>(random.below(i, sources + 20)));
    for (int32_t& from : gather) from = from < sources ? from : -1;

    auto const left = [&](int64_t r, int64_t c) {
        return gather[static_cast<size_t>(r)] < 0 ? 0.0f : to_float(a[static_cast<size_t>(gather[r] * D + c)]);
    };
    auto const right = [&](std::vector<bf16> const& x, int64_t r, int64_t c) {
        return first + r >= rows ? 0.0f : to_float(x[static_cast<size_t>(((first + r) * heads + head) * D + c)]);
    };
    Expected expected{std::vector<float>(128 * 128), std::vector<float>(128 * D), std::vector<float>(D * D)};
    for (int64_t i = 0; i < 128; ++i) {
        for (int64_t j = 0; j < 128; ++j)
            for (int64_t c = 0; c < D; ++c) expected.scores[i * 128 + j] += left(i, c) * right(b, j, c);
        for (int64_t c = 0; c < D; ++c)
            for (int64_t j = 0; j < 128; ++j)
                expected.outputs[i * D + c] += to_float(to_bf16(expected.scores[i * 128 + j])) * right(v, j, c);
    }
    for (int64_t m = 0; m < D; ++m)
        for (int64_t c = 0; c < D; ++c)
            for (int64_t i = 0; i < 128; ++i) expected.transposed[m * D + c] += left(i, m) * right(v, i, c);

    auto const device = make_cuda_device(0);
    GpuArray<bf16> const a_gpu(*device, a), b_gpu(*device, b), v_gpu(*device, v);
    GpuArray<int32_t> const gather_gpu(*device, gather);
    GpuArray<float> const scores(*device, 128 * 128), outputs(*device, 128 * D), transposed(*device, D * D);
    testing::run_hopper_probe({.head_dim = D,
                               .a = a_gpu.data(),
                               .gather = gather_gpu.data(),
                               .b = b_gpu.data(),
                               .v = v_gpu.data(),
                               .rows = rows,
                               .heads = heads,
                               .first = first,
                               .head = head,
                               .scores = scores.data(),
                               .outputs = outputs.data(),
                               .transposed = transposed.data()},
                              dynamic_cast<CudaDevice&>(*device).stream());
    EXPECT_EQ(scores.get(), expected.scores);
    EXPECT_EQ(outputs.get(), expected.outputs);
    EXPECT_EQ(transposed.get(), expected.transposed);
}

INSTANTIATE_TEST_SUITE_P(HeadDims, GpuHopper, ::testing::Values(64, 128));

}  // namespace
}  // namespace perigee
