#include "tensor/arena.h"

#include <gtest/gtest.h>

namespace perigee::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// Tensors of these MiB, one after the other: first those of one pass, then of another, which fit the blocks badly.
void two_passes(Arena& arena) {
    for (std::vector<int64_t> const& pass : {std::vector<int64_t>{16, 24, 8}, {24, 16, 8}}) {
        Arena::Scope const scope(arena);
        for (int64_t const mib : pass) arena.allocate("x", DType::u8, {mib * kMiB});
    }
}

TEST(Arena, TakesMoreThanItsPeakWhereBlocksLeaveGaps) {
    auto const device = make_host_device();
    Arena arena(*device);
    two_passes(arena);
    EXPECT_EQ(arena.peak_bytes(), 48 * kMiB);
    EXPECT_GT(arena.capacity_bytes(), arena.peak_bytes());
    arena.settle();
    EXPECT_EQ(arena.capacity_bytes(), arena.peak_bytes());
}

TEST(Arena, TakesItsPeakOnceWhereItWasReserved) {
    auto const device = make_host_device();
    Arena arena(*device);
    arena.reserve(48 * kMiB);
    two_passes(arena);
    arena.settle();
    EXPECT_EQ(arena.capacity_bytes(), 48 * kMiB);
    EXPECT_EQ(arena.growths(), 1);
    arena.reserve(64 * kMiB);
    EXPECT_EQ(arena.capacity_bytes(), 48 * kMiB) << "only where there is no block yet";
}

TEST(Arena, GoesOnWithBlocksWhereSoMuchCannotBeReserved) {
    if (PERIGEE_SANITIZED) GTEST_SKIP() << "AddressSanitizer ends a program that asks for so much";
    auto const device = make_host_device();
    Arena arena(*device);
    arena.reserve(int64_t{1} << 60);
    EXPECT_EQ(arena.capacity_bytes(), 0);
    two_passes(arena);
    EXPECT_EQ(arena.peak_bytes(), 48 * kMiB);
}

}  // namespace
}  // namespace perigee::testing
