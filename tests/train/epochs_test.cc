#include <gtest/gtest.h>

#include "config/config.h"
#include "train/session.h"

namespace perigee {
namespace {

RunOptions mock(std::vector<std::string> const& overrides) {
    return parse_config("model: {vocab_size: 64}\ndata: {mock_data: true, sequence_length: 32}\n", "test", overrides);
}
constexpr int64_t kSamples = int64_t{1} << 20;  // an epoch of mock data

TEST(Epochs, BecomeSteps) {
    auto const files = make_file_system();
    EXPECT_EQ(with_steps_of_epochs(mock({"train.steps=7"}), *files).train.steps, 7);
    EXPECT_EQ(with_steps_of_epochs(mock({"train.epochs=2", "train.global_batch_size=8"}), *files).train.steps,
              2 * kSamples / 8);
    EXPECT_EQ(with_steps_of_epochs(mock({"train.epochs=0.001", "train.global_batch_size=4"}), *files).train.steps, 263)
        << "1048.6 samples, rounded up to whole steps";
    EXPECT_EQ(with_steps_of_epochs(mock({"train.epochs=1e-9"}), *files).train.steps, 1);
}

TEST(Epochs, MustLeaveRoomForTheSchedule) {
    auto const files = make_file_system();
    RunOptions const options = mock({"train.epochs=0.001", "train.global_batch_size=4", "schedule.warmup_steps=264"});
    EXPECT_EQ(problems(options, 1), std::vector<std::string>{}) << "as long as nobody knows the steps";
    try {
        with_steps_of_epochs(options, *files);
        FAIL() << "a warm-up longer than the run";
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::config);
        EXPECT_STREQ(
            e.what(),
            "train.epochs (0.001) are 263 steps: schedule.warmup_steps (264) must be at most train.steps (263)");
    }
}

}  // namespace
}  // namespace perigee
