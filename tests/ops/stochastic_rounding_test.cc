// Rounding to bf16 at random: unbiased, the same bits every time, and independent of how a tensor is cut.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

std::vector<bf16> rounded(Ops& ops, std::vector<float> const& x, Philox const& random, TensorPart part = {}) {
    auto const size = std::ssize(x);
    Buffer const from(ops.device(), x.size() * sizeof(float)), to(ops.device(), x.size() * sizeof(bf16));
    TensorView const from_view(static_cast<std::byte*>(from.data()), DType::f32, {size});
    TensorView const to_view(static_cast<std::byte*>(to.data()), DType::bf16, {size});
    ops.upload(from_view, x.data());
    ops.upload(to_view, std::vector<uint16_t>(x.size(), 0xffff).data());
    ops.round_stochastically({.to = to_view, .from = from_view, .random = random, .part = part});
    std::vector<bf16> result(x.size());
    ops.download(result.data(), to_view);
    return result;
}

std::vector<uint16_t> bits(std::vector<bf16> const& values) {
    std::vector<uint16_t> bits;
    for (bf16 x : values) bits.push_back(x.bits);
    return bits;
}

Philox const kRandom(5, Purpose::rounding, 17);

class StochasticRoundingTest : public ::testing::Test {
  protected:
    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Ops> ops_ = make_host_ops(*device_, 2);
};

TEST_F(StochasticRoundingTest, RoundsToOneOfTheTwoNeighboursWithTheRightMean) {
    constexpr int64_t kCount = 200000;
    for (float low : {1.0f, -1.0f, 0.0078125f, -3e-20f, 120.0f}) {
        auto const start = std::bit_cast<uint32_t>(low) & 0xffff0000u;
        for (uint32_t cut : {0x0001u, 0x2000u, 0x8000u, 0xc123u, 0xffffu}) {
            auto const x = std::bit_cast<float>(start | cut);
            double up = 0;
            for (bf16 y : rounded(*ops_, std::vector<float>(kCount, x), kRandom)) {
                uint32_t const place = (uint32_t{y.bits} << 16) - start;
                ASSERT_TRUE(place == 0 || place == 0x10000u) << to_float(y) << " from " << x;
                up += place != 0;
            }
            double const p = cut / 65536.0;
            EXPECT_NEAR(up / kCount, p, 5 * std::sqrt(p * (1 - p) / kCount) + 1e-9) << x;
        }
    }
}

TEST_F(StochasticRoundingTest, WhatBf16HoldsAndWhatIsNotFiniteStays) {
    std::vector<float> const x = {0, -0.0f, 1, -2.5f, INFINITY, -INFINITY, std::nanf("")};
    for (uint64_t stream = 0; stream < 100; ++stream) {
        auto const y = rounded(*ops_, x, Philox(1, Purpose::rounding, stream));
        for (size_t i = 0; i + 1 < x.size(); ++i) ASSERT_EQ(y[i].bits, to_bf16(x[i]).bits);
        ASSERT_TRUE(std::isnan(to_float(y.back())));
    }
}

TEST_F(StochasticRoundingTest, DependsOnTheElementOfTheTensorAloneNotOnTheCut) {
    constexpr int64_t kRows = 37, kColumns = 50;
    auto const x = random_normal<float>(kRows * kColumns, 3);
    auto const whole = bits(rounded(*ops_, x, kRandom));
    EXPECT_EQ(bits(rounded(*ops_, x, kRandom)), whole);
    EXPECT_NE(bits(rounded(*ops_, x, Philox(5, Purpose::rounding, 18))), whole);
    auto const part_of = [](auto const& all, int64_t first, int64_t count, int64_t width) {
        std::remove_cvref_t<decltype(all)> part;
        for (int64_t i = 0; i < count; ++i)
            part.push_back(all[static_cast<size_t>(first + i / width * kColumns + i % width)]);
        return part;
    };
    // A range of the flat tensor; and columns 8 to 29 without their first 30 values.
    auto const range = part_of(x, 101, 900, kColumns);
    EXPECT_EQ(bits(rounded(*ops_, range, kRandom, {.begin = 101, .width = kColumns, .stride = kColumns})),
              part_of(whole, 101, 900, kColumns));
    auto columns = part_of(x, 8, kRows * 21, 21);
    auto expected = part_of(whole, 8, kRows * 21, 21);
    columns.erase(columns.begin(), columns.begin() + 30);
    expected.erase(expected.begin(), expected.begin() + 30);
    EXPECT_EQ(bits(rounded(*ops_, columns, kRandom, {.begin = 30, .first = 8, .width = 21, .stride = kColumns})),
              expected);
}

class GpuStochasticRounding : public GpuTest {};

TEST_F(GpuStochasticRounding, IsThatOfTheHostBitForBit) {
    auto const device = make_host_device();
    auto const host = make_host_ops(*device);
    for (int64_t count : {1, 7, 8, 1000, 100003}) {
        auto x = random_normal<float>(count, 9);
        x[0] = -INFINITY;
        for (TensorPart const& part : {TensorPart{},
                                       {.begin = 5, .first = 70, .width = 13, .stride = 29},
                                       {.begin = 16, .first = int64_t{1} << 33, .width = 64, .stride = 4096},
                                       {.begin = 4, .first = 4, .width = 24, .stride = 40}})
            EXPECT_EQ(bits(rounded(gpu(), x, kRandom, part)), bits(rounded(*host, x, kRandom, part)))
                << count << " in rows of " << part.width;
    }
}

}  // namespace

}  // namespace perigee::testing
