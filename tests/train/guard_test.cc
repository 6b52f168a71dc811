#include "train/guard.h"

#include <gtest/gtest.h>

#include <limits>

namespace perigee {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Category category_of(auto&& call) {
    try {
        call();
    } catch (Error const& e) {
        return e.category();
    }
    return Category::internal;
}

TEST(Guard, finite_steps_apply_and_reset_the_count) {
    int64_t in_a_row = 2;
    EXPECT_EQ(judge_step({}, 1, 3.0, 0.5, in_a_row), Verdict::apply);
    EXPECT_EQ(in_a_row, 0);
}

TEST(Guard, loss_or_norm_that_is_not_finite_is_skipped) {
    int64_t in_a_row = 0;
    TrainOptions const options{.max_skipped_in_a_row = 10};
    EXPECT_EQ(judge_step(options, 1, kNan, 0.5, in_a_row), Verdict::skip);
    EXPECT_EQ(judge_step(options, 2, 3.0, kNan, in_a_row), Verdict::skip);
    EXPECT_EQ(judge_step(options, 3, kInf, 0.5, in_a_row), Verdict::skip);
    EXPECT_EQ(judge_step(options, 4, 3.0, -kInf, in_a_row), Verdict::skip);
    EXPECT_EQ(in_a_row, 4);
}

TEST(Guard, too_many_skipped_steps_in_a_row_end_the_run) {
    TrainOptions const options{.max_skipped_in_a_row = 2};
    int64_t in_a_row = 0;
    EXPECT_EQ(judge_step(options, 1, kNan, 1, in_a_row), Verdict::skip);
    EXPECT_EQ(judge_step(options, 2, kNan, 1, in_a_row), Verdict::skip);
    EXPECT_EQ(category_of([&] { judge_step(options, 3, kNan, 1, in_a_row); }), Category::numeric);
}

TEST(Guard, policy_stop_ends_the_run_at_once) {
    TrainOptions const options{.non_finite = NonFinite::stop};
    int64_t in_a_row = 0;
    EXPECT_EQ(category_of([&] { judge_step(options, 1, kNan, 1, in_a_row); }), Category::numeric);
}

}  // namespace
}  // namespace perigee
