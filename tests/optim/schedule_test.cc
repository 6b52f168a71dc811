#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "optim/optimizer.h"

namespace perigee {
namespace {

constexpr double kPeak = 3e-4;
constexpr Decay kFalling[] = {Decay::cosine, Decay::linear, Decay::wsd};

TEST(LearningRate, RisesLinearlyFromOneWarmupthToThePeak) {
    for (Decay decay : {Decay::cosine, Decay::linear, Decay::wsd, Decay::constant}) {
        ScheduleOptions const options{.warmup_steps = 8, .decay = decay};
        for (int64_t step = 0; step < 8; ++step) {
            EXPECT_DOUBLE_EQ(learning_rate(options, kPeak, step, 100), kPeak * static_cast<double>(step + 1) / 8);
        }
        EXPECT_DOUBLE_EQ(learning_rate(options, kPeak, 8, 100), kPeak) << "no jump after the warm-up";
    }
}

TEST(LearningRate, StartsAtThePeakWithoutWarmup) {
    for (Decay decay : kFalling) {
        EXPECT_EQ(learning_rate({.decay = decay}, kPeak, 0, 100), kPeak);
        EXPECT_EQ(learning_rate({.decay = decay}, kPeak, 0, 1), kPeak) << "a run of one step";
    }
}

TEST(LearningRate, CosineAndLinearFollowTheirCurves) {
    ScheduleOptions const cosine{.warmup_steps = 10, .min_lr_ratio = 0.2};
    ScheduleOptions const linear{.warmup_steps = 10, .decay = Decay::linear, .min_lr_ratio = 0.2};
    for (int64_t step = 10; step < 50; ++step) {
        double const x = static_cast<double>(step - 10) / 40;
        double const bow = (1 + std::cos(std::numbers::pi * x)) / 2;
        EXPECT_NEAR(learning_rate(cosine, 1, step, 50), 0.2 + 0.8 * bow, 1e-15);
        EXPECT_NEAR(learning_rate(linear, 1, step, 50), 0.2 + 0.8 * (1 - x), 1e-15);
    }
    EXPECT_NEAR(learning_rate(cosine, 1, 30, 50), 0.6, 1e-15) << "half-way between peak and end";
}

TEST(LearningRate, WsdStaysAtThePeakThenFallsLinearly) {
    ScheduleOptions const options{.warmup_steps = 5, .decay = Decay::wsd, .min_lr_ratio = 0, .decay_steps = 10};
    for (int64_t step = 5; step <= 40; ++step) EXPECT_EQ(learning_rate(options, 1, step, 50), 1.0) << step;
    for (int64_t step = 40; step < 50; ++step) {
        EXPECT_NEAR(learning_rate(options, 1, step, 50), static_cast<double>(50 - step) / 10, 1e-15) << step;
    }
}

TEST(LearningRate, WsdTakesAFifthOfTheRunByDefaultAndNeverEatsTheWarmup) {
    ScheduleOptions options{.decay = Decay::wsd, .min_lr_ratio = 0};
    EXPECT_EQ(learning_rate(options, 1, 80, 100), 1.0);
    EXPECT_NEAR(learning_rate(options, 1, 81, 100), 0.95, 1e-15);
    options = {.warmup_steps = 60, .decay = Decay::wsd, .min_lr_ratio = 0, .decay_steps = 90};
    EXPECT_EQ(learning_rate(options, 1, 60, 100), 1.0);
    EXPECT_NEAR(learning_rate(options, 1, 80, 100), 0.5, 1e-15);
}

TEST(LearningRate, NeverRisesAfterTheWarmupAndStaysAtTheEndBeyondTheRun) {
    for (Decay decay : kFalling) {
        ScheduleOptions const options{.warmup_steps = 7, .decay = decay, .min_lr_ratio = 0.1};
        for (int64_t step = 7; step < 120; ++step) {
            EXPECT_LE(learning_rate(options, 1, step + 1, 100), learning_rate(options, 1, step, 100));
        }
        EXPECT_NEAR(learning_rate(options, 1, 100, 100), 0.1, 1e-15);
        EXPECT_NEAR(learning_rate(options, 1, 5000, 100), 0.1, 1e-15);
    }
    EXPECT_EQ(learning_rate({.decay = Decay::constant}, kPeak, 5000, 100), kPeak);
}

TEST(LearningRate, OfAWarmupLongerThanTheRunOnlyRises) {
    EXPECT_DOUBLE_EQ(learning_rate({.warmup_steps = 200}, 1, 99, 100), 0.5);
}

TEST(OptimizerOptions, RefuseWhatCannotTrain) {
    OptimizerOptions adamw;
    ScheduleOptions course;
    Schema schema;
    describe(schema, adamw);
    describe(schema, course);
    ASSERT_EQ(schema.fields().size(), 13u);
    for (auto const& field : schema.fields()) {
        EXPECT_FALSE(field.help.empty()) << field.key;
        if (field.key.starts_with("beta")) {
            EXPECT_LT(field.range.high, 1);
        }
        if (field.key == "lr" || field.key == "eps") {
            EXPECT_TRUE(field.range.strict_low && field.range.low == 0);
        }
    }
}

}  // namespace
}  // namespace perigee
