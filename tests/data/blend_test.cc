#include "data/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/philox.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Blend, OneDataSetGetsEverything) {
    Blend const blend({0.3});
    for (int64_t const i : {0, 1, 4095, 4096, 10000}) {
        EXPECT_EQ(blend.at(i).dataset, 0);
        EXPECT_EQ(blend.at(i).index, i);
    }
}

TEST(Blend, QuotasAreTheLargestRemainders) {
    EXPECT_THAT(Blend({1, 1, 1}).quotas(), ElementsAre(1366, 1365, 1365));
    EXPECT_THAT(Blend({3, 1}).quotas(), ElementsAre(3072, 1024));
    EXPECT_THAT(Blend({0.7, 0.2, 0.1}).quotas(), ElementsAre(2867, 819, 410));
    EXPECT_THAT(Blend({1e9, 1e9}).quotas(), ElementsAre(2048, 2048));
}

TEST(Blend, EqualWeightsAlternate) {
    Blend const blend({1, 1});
    for (int64_t i = 0; i + 1 < 100; i += 2) EXPECT_NE(blend.at(i).dataset, blend.at(i + 1).dataset);
}

TEST(Blend, EveryPrefixHoldsEachShareWithinTheBound) {
    Philox const random(3, Purpose::blend);
    uint64_t counter = 0;
    for (int trial = 0; trial < 200; ++trial) {
        std::vector<double> weights(1 + random.below(counter++, 12));
        for (auto& weight : weights) weight = 0.01 + std::exp(4 * random.uniform(counter++));
        Blend const blend(weights);
        auto const& quotas = blend.quotas();
        ASSERT_EQ(std::accumulate(quotas.begin(), quotas.end(), int64_t{0}), Blend::kPeriod);
        double const total = std::accumulate(weights.begin(), weights.end(), 0.0);
        double const bound = weights.size() == 1 ? 0 : 1 - 1 / (2.0 * static_cast<double>(weights.size()) - 2);
        std::vector<int64_t> counts(weights.size(), 0);
        for (int64_t i = 0; i < 2 * Blend::kPeriod; ++i) {
            auto const [dataset, index] = blend.at(i);
            ASSERT_EQ(index, counts[static_cast<size_t>(dataset)]++) << "samples of a data set come in order";
            for (size_t k = 0; k < weights.size(); ++k) {
                double const share = static_cast<double>(quotas[k]) / Blend::kPeriod;
                ASSERT_LE(std::abs(static_cast<double>(counts[k]) - share * static_cast<double>(i + 1)), bound + 1e-9);
            }
        }
        for (size_t k = 0; k < weights.size(); ++k) {
            EXPECT_EQ(counts[k], 2 * quotas[k]) << "shares are exact in every period";
            EXPECT_LT(std::abs(static_cast<double>(quotas[k]) - weights[k] / total * Blend::kPeriod), 1.0);
        }
    }
}

TEST(Blend, AnySampleIsFoundWithoutTheOnesBefore) {
    Blend const blend({5, 2, 1});
    Blend const again({5, 2, 1});
    for (int64_t i = 20000; i-- > 0;) {
        auto const a = blend.at(i), b = again.at(i);
        ASSERT_EQ(a.dataset, b.dataset);
        ASSERT_EQ(a.index, b.index);
    }
    auto const far = blend.at(int64_t{1} << 50);
    EXPECT_EQ(far.index, (int64_t{1} << 50) / Blend::kPeriod * blend.quotas()[static_cast<size_t>(far.dataset)]);
}

TEST(Blend, AWeightTooSmallToBeHeardIsNamed) {
    EXPECT_THAT(testing::error_of(Category::config,
                                  [] {
                                      Blend({1.0, 0.00001});
                                  }),
                HasSubstr("data set 2 of 2: weight 1e-05"));
}

// A change here changes the data order of every run that is resumed.
TEST(Blend, NeverChanges) {
    Blend const blend({5, 2, 1});
    std::vector<int64_t> sets;
    for (int64_t i = 0; i < 16; ++i) sets.push_back(blend.at(i).dataset);
    EXPECT_THAT(sets, ElementsAre(0, 0, 1, 0, 2, 0, 1, 0, 0, 0, 1, 0, 2, 0, 1, 0));
}

}  // namespace
}  // namespace perigee
