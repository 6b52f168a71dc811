// Strided copies between layouts.
#include <gtest/gtest.h>

#include <numeric>

#include "ops/ops.h"

namespace perigee {
namespace {

class CopyRowsTest : public ::testing::Test {
  protected:
    CopyRowsTest() : device_(make_host_device()), ops_(make_host_ops(*device_, 1)) {
        std::iota(from_.begin(), from_.end(), 1);
    }
    TensorView to(int64_t size = 60) { return {to_.data(), {size}}; }
    ConstView from() const { return {from_.data(), {6, 10}}; }

    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
    std::vector<int32_t> from_ = std::vector<int32_t>(60);
    std::vector<int32_t> to_ = std::vector<int32_t>(60, -1);
};

TEST_F(CopyRowsTest, MovesOnlyTheRunsItIsTold) {
    for (int64_t width : {1, 3, 4})
        for (int64_t from_stride : {4, 10, 13})
            for (int64_t to_stride : {4, 7}) {
                to_.assign(60, -1);
                std::vector<int32_t> expected = to_;
                for (int64_t row = 0; row < 4; ++row)
                    for (int64_t i = 0; i < width; ++i)
                        expected[static_cast<size_t>(5 + row * to_stride + i)] =
                            from_[static_cast<size_t>(2 + row * from_stride + i)];
                ops_->copy_rows({.to = to(),
                                 .to_begin = 5,
                                 .to_stride = to_stride,
                                 .from = from(),
                                 .from_begin = 2,
                                 .from_stride = from_stride,
                                 .rows = 4,
                                 .width = width});
                EXPECT_EQ(to_, expected);
            }
}

TEST_F(CopyRowsTest, TurnsHeadsAndTokensAround) {
    // [T, R, K] to [R, T, K] and back.
    int64_t const T = 5, R = 3, K = 4;
    std::vector<int32_t> back(60, -1);
    for (int64_t r = 0; r < R; ++r)
        ops_->copy_rows({.to = to(),
                         .to_begin = r * T * K,
                         .to_stride = K,
                         .from = from(),
                         .from_begin = r * K,
                         .from_stride = R * K,
                         .rows = T,
                         .width = K});
    EXPECT_EQ(to_[static_cast<size_t>((2 * T + 3) * K + 1)], from_[static_cast<size_t>((3 * R + 2) * K + 1)]);
    for (int64_t r = 0; r < R; ++r)
        ops_->copy_rows({.to = {back.data(), {60}},
                         .to_begin = r * K,
                         .to_stride = R * K,
                         .from = to(),
                         .from_begin = r * T * K,
                         .from_stride = K,
                         .rows = T,
                         .width = K});
    EXPECT_EQ(back, from_);
}

TEST_F(CopyRowsTest, OfNothingIsFine) {
    ops_->copy_rows({.to = to(), .to_begin = 60, .from = from(), .from_begin = 60, .rows = 5, .width = 0});
    ops_->copy_rows({.to = to(), .to_stride = 9, .from = from(), .from_stride = 9, .rows = 0, .width = 9});
    EXPECT_EQ(to_, std::vector<int32_t>(60, -1));
}

TEST_F(CopyRowsTest, MayNotLeaveItsViewsNorOverlapItsRuns) {
    CopyRows const good{.to = to(27),
                        .to_begin = 2,
                        .to_stride = 7,
                        .from = from(),
                        .from_begin = 2,
                        .from_stride = 18,
                        .rows = 4,
                        .width = 4};
    auto const with = [&](auto change) {
        CopyRows args = good;
        change(args);
        return args;
    };
    EXPECT_NO_THROW(ops_->copy_rows(good));
    for (CopyRows const& bad :
         {with([](CopyRows& x) { x.to_begin = 3; }), with([](CopyRows& x) { x.from_begin = 5; }),
          with([](CopyRows& x) { x.to_begin = -1; }), with([](CopyRows& x) { x.from_begin = -1; }),
          with([](CopyRows& x) { x.rows = -1; }), with([](CopyRows& x) { x.width = -1; }), with([](CopyRows& x) {
              x.width = 8;
              x.rows = 1;
          }),
          with([](CopyRows& x) { x.to.dtype = DType::f32; })})
        EXPECT_THROW(ops_->copy_rows(bad), Error);
}

}  // namespace
}  // namespace perigee
