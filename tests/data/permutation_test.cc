#include "data/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace perigee {
namespace {

std::vector<uint64_t> first_of(uint64_t n, uint64_t count, uint64_t seed, uint64_t stream) {
    Permutation const order(n, Philox(seed, Purpose::sample_order, stream));
    std::vector<uint64_t> places;
    for (uint64_t i = 0; i < count; ++i) places.push_back(order(i));
    return places;
}

TEST(Permutation, IsABijectionForEverySize) {
    for (uint64_t n = 1; n < 600; ++n) {
        auto const places = first_of(n, n, 5, n);
        std::set<uint64_t> const distinct(places.begin(), places.end());
        ASSERT_EQ(distinct.size(), n);
        ASSERT_EQ(*distinct.rbegin(), n - 1);
    }
    for (uint64_t const n : {4095u, 4096u, 4097u, 65535u, 65536u, 65537u, 100003u}) {
        std::vector<bool> seen(n, false);
        Permutation const order(n, Philox(6, Purpose::sample_order));
        for (uint64_t i = 0; i < n; ++i) {
            uint64_t const place = order(i);
            ASSERT_LT(place, n);
            ASSERT_FALSE(seen[place]);
            seen[place] = true;
        }
    }
}

TEST(Permutation, StaysInsideHugeRanges) {
    for (uint64_t const n : {(uint64_t{1} << 32) + 1, (uint64_t{1} << 62) + 12345, ~uint64_t{0}}) {
        auto const places = first_of(n, 1000, 7, 0);
        std::set<uint64_t> const distinct(places.begin(), places.end());
        EXPECT_EQ(distinct.size(), 1000u);
        EXPECT_LT(*distinct.rbegin(), n);
        EXPECT_GT(*distinct.rbegin(), n / 2);
    }
}

// Every place goes everywhere about equally often over many keys.
TEST(Permutation, IsUniformOverKeys) {
    constexpr uint64_t n = 10, keys = 20000;
    for (uint64_t const index : {0u, 3u, 9u}) {
        std::vector<double> counts(n, 0);
        for (uint64_t key = 0; key < keys; ++key) {
            ++counts[Permutation(n, Philox(key, Purpose::sample_order))(index)];
        }
        double chi_squared = 0;
        for (double const count : counts) chi_squared += (count - keys / n) * (count - keys / n) / (keys / n);
        EXPECT_LT(chi_squared, 27.9);  // 9 degrees of freedom: exceeded once in 1000 keys of a fair source
    }
}

TEST(Permutation, DiffersBetweenKeys) {
    EXPECT_NE(first_of(1000, 20, 1, 0), first_of(1000, 20, 2, 0));
    EXPECT_NE(first_of(1000, 20, 1, 0), first_of(1000, 20, 1, 1));
}

// A change here changes the data order of every run that is resumed.
TEST(Permutation, NeverChanges) {
    EXPECT_THAT(first_of(10, 10, 42, 0), ::testing::ElementsAre(9, 0, 6, 8, 2, 5, 1, 3, 4, 7));
    EXPECT_THAT(first_of(1000, 6, 42, 1), ::testing::ElementsAre(177, 249, 632, 245, 935, 393));
    EXPECT_THAT(first_of(123456789012345, 3, 7, 99),
                ::testing::ElementsAre(20330897464834, 23600335860011, 121211479464997));
}

}  // namespace
}  // namespace perigee
