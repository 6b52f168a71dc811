#include "data/best_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> sizes_like_conversations(uint64_t seed, int count, int64_t capacity) {
    Philox const random(seed, Purpose::mock_data);
    std::vector<int64_t> sizes;
    for (uint64_t i = 0; sizes.size() < static_cast<size_t>(count); ++i) {
        double const u = random.uniform(i);
        sizes.push_back(static_cast<int64_t>(u * u * static_cast<double>(capacity + 1)));
    }
    return sizes;
}

std::vector<std::vector<int64_t>> all_bins(BestFit const& fit, Philox const* key) {
    std::vector<std::vector<int64_t>> bins;
    for (int64_t bin = 0; bin < fit.bins(); ++bin) bins.push_back(fit.items(bin, key));
    return bins;
}

TEST(BestFit, PutsEachItemWhereTheLeastRoomIsLeft) {
    // In order of size: 6 opens 0, 5 opens 1, 4 fills 0, 3 leaves 2 in bin 1, the first 2 fills it, the other opens 2.
    std::vector<int64_t> const sizes{3, 6, 2, 5, 0, 4, 2};
    BestFit const fit(sizes, 10);
    ASSERT_EQ(fit.bins(), 3);
    EXPECT_THAT(fit.items(0, nullptr), ElementsAre(1, 5));
    EXPECT_THAT(fit.items(1, nullptr), ElementsAre(3, 0, 2));
    EXPECT_THAT(fit.items(2, nullptr), ElementsAre(6));
}

TEST(BestFit, HoldsEveryItemOnceAndNoBinTooMuch) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        int64_t const capacity = 16 << seed % 4;
        auto const sizes = sizes_like_conversations(seed, 500, capacity);
        BestFit const fit(sizes, capacity);
        Philox const key(seed, Purpose::document_order, 3);
        for (Philox const* const order : {static_cast<Philox const*>(nullptr), &key}) {
            std::set<int64_t> seen;
            for (auto const& bin : all_bins(fit, order)) {
                int64_t used = 0;
                for (int64_t const item : bin) {
                    EXPECT_TRUE(seen.insert(item).second) << item;
                    used += sizes[static_cast<size_t>(item)];
                }
                EXPECT_GT(used, 0);
                EXPECT_LE(used, capacity);
            }
            auto const empty = std::ranges::count(sizes, 0);
            EXPECT_EQ(static_cast<int64_t>(seen.size()), 500 - empty);
        }
    }
}

TEST(BestFit, WastesLittle) {
    auto const sizes = sizes_like_conversations(7, 20000, 4096);
    int64_t const total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    BestFit const fit(sizes, 4096);
    EXPECT_GT(static_cast<double>(total) / (4096.0 * static_cast<double>(fit.bins())), 0.995);
}

TEST(BestFit, KeysMoveItemsOfEqualSizeOnly) {
    auto const sizes = sizes_like_conversations(5, 3000, 64);
    BestFit const fit(sizes, 64);
    auto const plain = all_bins(fit, nullptr);
    std::set<std::vector<std::vector<int64_t>>> orders{plain};
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
        Philox const key(1, Purpose::document_order, epoch);
        auto const bins = all_bins(fit, &key);
        EXPECT_EQ(bins, all_bins(fit, &key));
        ASSERT_EQ(bins.size(), plain.size());
        for (size_t bin = 0; bin < bins.size(); ++bin) {
            ASSERT_EQ(bins[bin].size(), plain[bin].size());
            for (size_t i = 0; i < bins[bin].size(); ++i) {
                EXPECT_EQ(sizes[static_cast<size_t>(bins[bin][i])], sizes[static_cast<size_t>(plain[bin][i])]);
            }
        }
        orders.insert(bins);
    }
    EXPECT_EQ(orders.size(), 4u);
}

TEST(BestFit, ItemsThatFitNowhereAreAFault) {
    std::vector<int64_t> const sizes{4, 11};
    EXPECT_THROW(BestFit(sizes, 10), Error);
}

}  // namespace
}  // namespace perigee
