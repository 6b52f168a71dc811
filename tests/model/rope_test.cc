// Expected values: transformers 4.57.1, modeling_rope_utils.ROPE_INIT_FUNCTIONS, which computes in fp32.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace perigee {

namespace {

ModelOptions with_head(int64_t size, double theta, int64_t length) {
    ModelOptions options;
    options.head_dim = size;
    options.rope_theta = theta;
    options.max_position_embeddings = length;
    return options;
}

void expect_frequencies(ModelOptions const& options, std::vector<double> const& expected, double magnitude) {
    Rope const rope = make_rope(options);
    ASSERT_EQ(rope.inverse_frequencies.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(rope.inverse_frequencies[i] / expected[i], 1, 1e-6) << "frequency " << i;
    EXPECT_NEAR(rope.magnitude, magnitude, 1e-12);
}

TEST(Rope, DefaultIsHuggingFaces) {
    expect_frequencies(
        with_head(16, 500000, 8192),
        {1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.00141421345, 0.000274248188, 5.31829573e-05, 1.03133852e-05},
        1);
}

TEST(Rope, LinearIsHuggingFaces) {
    ModelOptions options = with_head(16, 10000, 8192);
    options.rope_scaling = {.type = RopeType::linear, .factor = 4};
    expect_frequencies(
        options,
        {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
        1);
}

TEST(Rope, Llama3IsHuggingFaces) {
    ModelOptions options = with_head(16, 500000, 131072);
    options.rope_scaling = {.type = RopeType::llama3,
                            .factor = 8,
                            .original_max_position_embeddings = 8192,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4};
    expect_frequencies(
        options,
        {1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06},
        1);
}

TEST(Rope, YarnIsHuggingFaces) {
    ModelOptions options = with_head(32, 1000000, 32768);
    options.rope_scaling = {.type = RopeType::yarn, .factor = 4, .original_max_position_embeddings = 2048};
    expect_frequencies(options,
                       {1.0, 0.421696514, 0.177827939, 0.063741006, 0.022135945, 0.0073343683, 0.00224936521,
                        0.000592843455, 0.000250000012, 0.000105424122, 4.44569851e-05, 1.87473561e-05, 7.90569356e-06,
                        3.33380353e-06, 1.40585337e-06, 5.92843435e-07},
                       1.138629436111989);
    options.rope_scaling.attention_factor = 0.75;
    EXPECT_EQ(make_rope(options).magnitude, 0.75);
}

TEST(Rope, YarnWithoutAnOriginalLengthTakesTheModels) {
    ModelOptions stated = with_head(32, 10000, 4096), unstated = stated;
    stated.rope_scaling = {.type = RopeType::yarn, .factor = 2, .original_max_position_embeddings = 4096};
    unstated.rope_scaling = {.type = RopeType::yarn, .factor = 2};
    EXPECT_EQ(make_rope(stated).inverse_frequencies, make_rope(unstated).inverse_frequencies);
}

}  // namespace

}  // namespace perigee
