#include "eval/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
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

/// What may be drawn and how likely it is: the processors of Hugging Face's generate(), one after the other, each over
/// the whole vocabulary. Nothing where rounding decides where the nucleus ends.
std::optional<std::vector<double>> distribution(std::vector<float> const& logits, SamplingOptions const& options,
                                                std::vector<int32_t> const& seen) {
    std::vector<float> penalised = logits;
    auto const penalty = static_cast<float>(options.repetition_penalty);
    for (int32_t const id : seen) {  // each once
        float& x = penalised[static_cast<size_t>(id)];
        x = x < 0 ? x * penalty : x / penalty;
    }
    std::vector<double> scores(penalised.begin(), penalised.end());
    for (double& x : scores) x /= options.temperature;
    auto const softmax = [](std::vector<double> x) {
        double const most = *std::ranges::max_element(x);
        double sum = 0;
        for (double& v : x) sum += v = std::exp(v - most);
        for (double& v : x) v /= sum;
        return x;
    };
    double const none = -std::numeric_limits<double>::infinity();
    if (options.top_k > 0) {
        std::vector<double> sorted = scores;
        std::ranges::sort(sorted, std::greater());
        double const least = sorted[std::min(static_cast<size_t>(options.top_k), sorted.size()) - 1];
        for (double& x : scores)
            if (x < least) x = none;
    }
    if (options.top_p < 1) {
        std::vector<size_t> order(scores.size());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, {}, [&](size_t id) { return scores[id]; });
        auto const p = softmax(scores);
        double sum = 0;
        std::vector<size_t> removed;
        for (size_t i = 0; i + 1 < order.size(); ++i) {
            sum += p[order[i]];
            if (std::abs(sum - (1 - options.top_p)) < 1e-7) return std::nullopt;
            if (sum <= 1 - options.top_p) removed.push_back(order[i]);
        }
        for (size_t const id : removed) scores[id] = none;
    }
    auto p = softmax(scores);
    double const best = *std::ranges::max_element(p);
    for (size_t id = 0; id < p.size(); ++id)
        if (p[id] < options.min_p * best) scores[id] = none;
    return softmax(scores);
}

/// By the inverse of the distribution function, likelier tokens first; nothing where `place` draws so close to a step
/// that rounding decides.
std::optional<int32_t> plainly_drawn(std::vector<double> const& p, int64_t place) {
    std::vector<int32_t> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater(), [&](int32_t id) { return std::pair(p[static_cast<size_t>(id)], id); });
    double const drawn = kRandom.uniform(static_cast<uint64_t>(place));
    double sum = 0;
    for (int32_t const id : order) {
        sum += p[static_cast<size_t>(id)];
        if (std::abs(sum - drawn) < 1e-6) return std::nullopt;
        if (sum > drawn) return id;
    }
    return std::nullopt;
}

TEST(SampleToken, DrawsWhatHuggingFacesProcessorsDraw) {
    Philox const random(11, Purpose::mock_data);
    int64_t compared = 0;
    std::set<int32_t> chosen;
    for (size_t const size : {3, 10, 257, 3000}) {
        std::vector<float> logits(size);  // multiples of 1/8 and of both signs: many are equal
        for (size_t i = 0; i < size; ++i) logits[i] = static_cast<float>(random.below(i, 120)) / 8 - 7;
        for (uint64_t i = 0; i < 400; ++i) {
            auto const pick = [&](uint64_t which, std::vector<double> const& values) {
                return values[random.below(1000 + 8 * i + which, values.size())];
            };
            SamplingOptions const options{
                .temperature = pick(0, {0.3, 1.0, 1.7, 50.0}),
                .top_k = static_cast<int64_t>(pick(1, {0, 0, 1, 2, 9, 40, 256, 5000})),
                .top_p = pick(2, {0.1, 0.5, 0.95, 0.999999, 1.0, 1.0}),
                .min_p = pick(3, {0, 0, 0.01, 0.3, 1}),
                .repetition_penalty = pick(4, {1, 1, 0.7, 1.3, 5}),
            };
            std::vector<int32_t> seen;
            for (int32_t id = static_cast<int32_t>(i % 3); id < static_cast<int32_t>(size); id += 3) seen.push_back(id);
            auto const p = distribution(logits, options, seen);
            if (!p) continue;
            for (int64_t place = 0; place < 4; ++place) {
                auto const want = plainly_drawn(*p, place);
                if (!want) continue;
                int32_t const found = sample_token(logits, std::ssize(logits), options, kRandom, place, seen);
                chosen.insert(found);
                ASSERT_EQ(found, *want) << size << " T " << options.temperature << " k " << options.top_k << " p "
                                        << options.top_p << " min_p " << options.min_p << " penalty "
                                        << options.repetition_penalty << " place " << place;
                ++compared;
            }
        }
    }
    EXPECT_GT(compared, 6000);
    EXPECT_GT(chosen.size(), 150u);
}

TEST(SampleToken, TiesOfTopKStayAndLowerIdsLeaveTheNucleusFirst) {
    std::vector<float> const logits = {2.0f, 1.0f, 1.0f, 1.0f, 0.0f};
    auto const top = histogram(logits, {.temperature = 1, .top_k = 2, .top_p = 1}, 3000);
    EXPECT_TRUE(top[1] > 0 && top[2] > 0 && top[3] > 0 && top[4] == 0);
    std::vector<float> const equal(4, 1.0f);
    auto const half = histogram(equal, {.temperature = 1, .top_p = 0.4}, 1000);
    EXPECT_TRUE(half[0] == 0 && half[1] == 0 && half[2] > 0 && half[3] > 0);
}

TEST(SampleToken, MinPIsRelativeToTheMostLikelyAfterTemperature) {
    std::vector<float> const logits = {std::log(0.6f), std::log(0.3f), std::log(0.1f)};
    EXPECT_EQ(histogram(logits, {.temperature = 1, .top_p = 1, .min_p = 0.2}, 2000)[2], 0);
    EXPECT_GT(histogram(logits, {.temperature = 2, .top_p = 1, .min_p = 0.2}, 2000)[2], 0);
    EXPECT_EQ(histogram(logits, {.temperature = 1, .top_p = 1, .min_p = 1}, 100)[0], 100);
}

TEST(Sampler, PenalisesEachTokenOnceWhateverItsCount) {
    std::vector<float> const logits = {3.0f, 2.9f, -1.0f, -1.1f};
    SamplingOptions const options{.temperature = 0, .repetition_penalty = 1.1};
    Sampler sampler(options, 1, 4);
    std::vector<int32_t> const prompt = {3, 3, 3, 3};
    sampler.see(prompt);
    EXPECT_EQ(sampler.draw(logits), 0);
    EXPECT_EQ(sampler.draw(logits), 1);  // 3.0 / 1.1 < 2.9
    EXPECT_EQ(sampler.draw(logits), 0);  // 2.9 / 1.1 < 3.0 / 1.1
    std::vector<float> const negative = {-1.0f, -1.05f, -3.0f, -3.0f};
    Sampler other(options, 1, 4);
    EXPECT_EQ(other.draw(negative), 0);
    EXPECT_EQ(other.draw(negative), 1);  // -1 * 1.1 < -1.05
}

TEST(Sampler, ATextIsAFunctionOfItsSeed) {
    std::vector<float> const logits(50, 0.5f);
    auto const text = [&](int64_t seed) {
        Sampler sampler({.temperature = 1, .top_p = 0.9}, seed, 50);
        std::vector<int32_t> ids;
        for (int i = 0; i < 20; ++i) ids.push_back(sampler.draw(logits));
        return ids;
    };
    EXPECT_EQ(text(3), text(3));
    EXPECT_NE(text(3), text(4));
}

TEST(LogProbabilities, AreThoseOfTheSoftmax) {
    Philox const random(12, Purpose::mock_data);
    std::vector<float> logits(5001);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(10 * random.normal(i));
    logits[7] = -kInfinity;
    logits[100] = logits[50] = 60;
    logits[4999] = 61;  // not allowed, and part of the sum
    double sum = 0;
    for (float const x : logits) sum += std::exp(static_cast<double>(x));
    auto const of = [&](int32_t id) { return static_cast<double>(logits[static_cast<size_t>(id)]) - std::log(sum); };
    for (int32_t const id : {0, 8, 4989}) EXPECT_NEAR(log_probability(logits, id), of(id), 1e-6);
    EXPECT_EQ(log_probability(logits, 7), -static_cast<double>(kInfinity));
    auto const top = likeliest(logits, 4990, 3);
    ASSERT_EQ(top.size(), 3u);
    EXPECT_EQ(top[0].id, 50);
    EXPECT_EQ(top[1].id, 100);
    for (TokenLogprob const& token : top) EXPECT_NEAR(token.logprob, of(token.id), 1e-6);
    EXPECT_EQ(likeliest(logits, 2, 5).size(), 2u);
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
