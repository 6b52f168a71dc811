// Dropout: rate, scale, and the same mask however a tensor is split.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

Philox const kRandom(5, Purpose::dropout, 17);

std::vector<float> dropped(Ops& ops, std::vector<float> const& x, double rate, TensorPart part = {}) {
    Buffer const memory(ops.device(), x.size() * sizeof(float));
    TensorView const view(static_cast<std::byte*>(memory.data()), DType::f32, {std::ssize(x)});
    ops.upload(view, x.data());
    ops.dropout({.y = view, .x = view, .rate = rate, .random = kRandom, .part = part});
    std::vector<float> y(x.size());
    ops.download(y.data(), view);
    return y;
}

class DropoutTest : public ::testing::Test {
  protected:
    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Ops> ops_ = make_host_ops(*device_, 2);
};

TEST_F(DropoutTest, KeepsTheMean) {
    constexpr int64_t kCount = 200000;
    for (double rate : {0.0, 0.1, 0.5, 0.9}) {
        double zeros = 0, sum = 0;
        for (float const y : dropped(*ops_, std::vector<float>(kCount, 3.0f), rate)) {
            zeros += y == 0;
            sum += static_cast<double>(y);
            ASSERT_TRUE(y == 0 || std::abs(static_cast<double>(y) * (1 - rate) / 3 - 1) < 1e-3) << y;
        }
        EXPECT_NEAR(zeros / kCount, rate, 5 * std::sqrt(rate * (1 - rate) / kCount) + 1e-9);
        EXPECT_NEAR(sum / kCount, 3, 0.1);
    }
}

TEST_F(DropoutTest, OfAPartIsThePartOfTheWhole) {
    constexpr int64_t kRows = 37, kColumns = 53, kFirstRow = 5, kFirst = 11, kWidth = 20;
    std::vector<float> const x = random_normal<float>(kRows * kColumns, 3);
    std::vector<float> const whole =
        dropped(*ops_, x, 0.3, {.first = 2 * kColumns, .width = kColumns, .stride = kColumns});
    std::vector<float> part;
    for (int64_t row = kFirstRow; row < kRows; ++row)
        for (int64_t column = kFirst; column < kFirst + kWidth; ++column)
            part.push_back(x[static_cast<size_t>(row * kColumns + column)]);
    std::vector<float> const got =
        dropped(*ops_, part, 0.3, {.first = (2 + kFirstRow) * kColumns + kFirst, .width = kWidth, .stride = kColumns});
    size_t i = 0;
    for (int64_t row = kFirstRow; row < kRows; ++row)
        for (int64_t column = kFirst; column < kFirst + kWidth; ++column)
            ASSERT_EQ(got[i++], whole[static_cast<size_t>(row * kColumns + column)]) << row << " " << column;
}

TEST_F(DropoutTest, DiffersBetweenNeighbours) {
    auto const y = dropped(*ops_, std::vector<float>(4096, 1.0f), 0.5);
    int same = 0;
    for (size_t i = 1; i < y.size(); ++i) same += y[i] == y[i - 1];
    EXPECT_NEAR(same / 4095.0, 0.5, 0.05);
}

}  // namespace

}  // namespace perigee::testing
