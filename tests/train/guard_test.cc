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

Verdict judge(TrainOptions const& train, double loss, double norm, RunState& state, GuardOptions const& guard = {}) {
    Verdict const verdict = judge_step(train, guard, loss, norm, state).verdict;
    ++state.step;
    return verdict;
}

TEST(Guard, finite_steps_apply_and_reset_the_count) {
    RunState state{.skipped_in_a_row = 2, .info = {}};
    EXPECT_EQ(judge({}, 3.0, 0.5, state), Verdict::apply);
    EXPECT_EQ(state.skipped_in_a_row, 0);
}

TEST(Guard, loss_or_norm_that_is_not_finite_is_skipped_and_no_part_of_the_statistics) {
    RunState state;
    TrainOptions const options{.max_skipped_in_a_row = 10};
    EXPECT_EQ(judge(options, kNan, 0.5, state), Verdict::skip);
    EXPECT_EQ(judge(options, 3.0, kNan, state), Verdict::skip);
    EXPECT_EQ(judge(options, kInf, 0.5, state), Verdict::skip);
    EXPECT_EQ(judge(options, 4.0, -kInf, state), Verdict::skip);
    EXPECT_EQ(state.skipped_in_a_row, 4);
    EXPECT_EQ(state.spikes, RunState::Spikes{});
}

TEST(Guard, too_many_skipped_steps_in_a_row_end_the_run_or_roll_it_back) {
    TrainOptions const options{.max_skipped_in_a_row = 2};
    for (SpikePolicy const policy : {SpikePolicy::warn, SpikePolicy::rollback}) {
        RunState state;
        GuardOptions const guard{.spike = policy};
        EXPECT_EQ(judge(options, kNan, 1, state, guard), Verdict::skip);
        EXPECT_EQ(judge(options, kNan, 1, state, guard), Verdict::skip);
        if (policy == SpikePolicy::rollback)
            EXPECT_EQ(judge(options, kNan, 1, state, guard), Verdict::roll_back);
        else
            EXPECT_EQ(category_of([&] { judge(options, kNan, 1, state, guard); }), Category::numeric);
    }
}

TEST(Guard, policy_stop_ends_the_run_at_once) {
    TrainOptions const options{.non_finite = NonFinite::stop};
    RunState state;
    EXPECT_EQ(category_of([&] { judge(options, kNan, 1, state); }), Category::numeric);
}

TEST(Guard, a_series_of_spikes_is_one_until_a_window_has_none) {
    GuardOptions const guard{.spike_window = 16};
    RunState state;
    auto const step = [&](double loss) {
        Judgement const judged = judge_step({}, guard, loss, 1, state);
        ++state.step;
        return judged.spike ? judged.new_spike ? 2 : 1 : 0;
    };
    for (int i = 0; i < 20; ++i) EXPECT_EQ(step(3), 0);
    EXPECT_EQ(step(9), 2);
    EXPECT_EQ(step(9), 1);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(step(3), 0);
    EXPECT_EQ(step(9), 2);
}

}  // namespace
}  // namespace perigee
