#include "eval/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace perigee {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
Philox const kRandom(7, Purpose::generate);

/// How often each token is chosen in `draws` places.
std::vector<int> histogram(std::vector<float> const& logits, SamplingOptions const& options, int draws) {
    std::vector<int> counts(logits.size());
    for (int i = 0; i < draws; ++i)
        ++counts[static_cast<size_t>(sample_token(logits, std::ssize(logits), options, kRandom, i))];
    return counts;
}

/// Within five standard deviations of a binomial count.
void expect_share(int count, int draws, double probability) {
    double const spread = std::sqrt(draws * probability * (1 - probability));
    EXPECT_NEAR(count, draws * probability, 5 * spread + 1e-9) << "for probability " << probability;
}

TEST(SampleToken, FollowsTheSoftmaxOfTheLogits) {
    std::vector<float> const logits = {0.0f, std::log(3.0f), std::log(2.0f), std::log(4.0f)};
    auto const counts = histogram(logits, {.temperature = 1, .top_p = 1}, 20000);
    expect_share(counts[0], 20000, 0.1);
    expect_share(counts[1], 20000, 0.3);
    expect_share(counts[2], 20000, 0.2);
    expect_share(counts[3], 20000, 0.4);
}

TEST(SampleToken, TemperatureDividesTheLogits) {
    std::vector<float> const logits = {0.0f, std::log(3.0f)};
    expect_share(histogram(logits, {.temperature = 0.5, .top_p = 1}, 20000)[1], 20000, 0.9);
    expect_share(histogram(logits, {.temperature = 2, .top_p = 1}, 20000)[1], 20000,
                 std::sqrt(3.0) / (1 + std::sqrt(3.0)));
}

TEST(SampleToken, AtTemperatureZeroIsAlwaysTheMostLikely) {
    std::vector<float> const logits = {1.0f, 5.0f, 4.9f, 5.0f};
    EXPECT_EQ(histogram(logits, {.temperature = 0, .top_p = 1}, 100)[1], 100);
}

TEST(SampleToken, DrawsOnlyFromTheNucleus) {
    std::vector<float> const logits = {std::log(0.05f), std::log(0.5f), std::log(0.15f), std::log(0.3f)};
    auto const two = histogram(logits, {.temperature = 1, .top_p = 0.7}, 20000);
    EXPECT_EQ(two[0] + two[2], 0);
    expect_share(two[1], 20000, 0.625);
    auto const three = histogram(logits, {.temperature = 1, .top_p = 0.85}, 20000);
    EXPECT_EQ(three[0], 0);
    EXPECT_GT(three[2], 0);
    EXPECT_EQ(histogram(logits, {.temperature = 1, .top_p = 1e-9}, 100)[1], 100);
}

/// By sorting the whole vocabulary.
int32_t plainly_drawn(std::vector<float> const& logits, SamplingOptions const& options, int64_t place) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    auto const logit = [&](int32_t id) { return static_cast<double>(logits[static_cast<size_t>(id)]); };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
    std::vector<double> cumulative;
    double sum = 0;
    for (int32_t const id : order)
        cumulative.push_back(sum += std::exp((logit(id) - logit(order[0])) / options.temperature));
    auto const end = std::lower_bound(cumulative.begin(), cumulative.end(), options.top_p * sum);
    double const drawn = kRandom.uniform(static_cast<uint64_t>(place)) * *end;
    return order[static_cast<size_t>(std::upper_bound(cumulative.begin(), cumulative.end(), drawn) -
                                     cumulative.begin())];
}

TEST(SampleToken, DrawsWhatSortingTheWholeVocabularyDraws) {
    Philox const random(11, Purpose::mock_data);
    for (size_t const size : {10, 256, 257, 5000, 9000}) {
        std::vector<float> logits(size);  // multiples of 1/8: many are equal
        for (size_t i = 0; i < size; ++i) logits[i] = static_cast<float>(random.below(i, 60)) / 8;
        for (double const temperature : {0.3, 1.0, 50.0})
            for (double const top_p : {0.1, 0.5, 0.95, 0.999999}) {
                SamplingOptions const options{.temperature = temperature, .top_p = top_p};
                for (int64_t place = 0; place < 8; ++place)
                    ASSERT_EQ(sample_token(logits, std::ssize(logits), options, kRandom, place),
                              plainly_drawn(logits, options, place))
                        << size << " " << temperature << " " << top_p;
            }
    }
}

TEST(SampleToken, NeverChoosesThePaddingOfTheVocabularyOrImpossibleTokens) {
    std::vector<float> const logits = {0.0f, -kInfinity, 0.0f, 100.0f};
    for (double const temperature : {0.0, 1.0}) {
        for (int i = 0; i < 1000; ++i) {
            int32_t const token = sample_token(logits, 3, {.temperature = temperature, .top_p = 1}, kRandom, i);
            EXPECT_TRUE(token == 0 || token == 2);
        }
    }
}

TEST(SampleToken, IsAFunctionOfSeedAndPlace) {
    std::vector<float> const logits(100, 0.0f);
    SamplingOptions const options{.temperature = 1, .top_p = 1};
    int same_place = 0, same_seed = 0;
    for (int64_t i = 0; i < 200; ++i) {
        int32_t const token = sample_token(logits, 100, options, kRandom, i);
        EXPECT_EQ(token, sample_token(logits, 100, options, Philox(7, Purpose::generate), i));
        same_place += token == sample_token(logits, 100, options, kRandom, i + 1);
        same_seed += token == sample_token(logits, 100, options, Philox(8, Purpose::generate), i);
    }
    EXPECT_LT(same_place, 20);
    EXPECT_LT(same_seed, 20);
}

TEST(SampleToken, SurvivesHugeAndTinyLogits) {
    std::vector<float> const logits = {3e38f, -3e38f, 3e38f};
    auto const counts = histogram(logits, {.temperature = 1e-3, .top_p = 1}, 1000);
    EXPECT_EQ(counts[1], 0);
    EXPECT_GT(counts[0], 300);
    EXPECT_GT(counts[2], 300);
}

TEST(SampleToken, RefusesLogitsThatAreNotNumbers) {
    for (std::vector<float> const& logits :
         {std::vector<float>{0, std::nanf("")}, {0, kInfinity}, {-kInfinity, -kInfinity}}) {
        try {
            sample_token(logits, 2, {}, kRandom, 5);
            ADD_FAILURE() << "accepted";
        } catch (Error const& error) {
            EXPECT_EQ(error.category(), Category::numeric);
        }
    }
}

}  // namespace
}  // namespace perigee
