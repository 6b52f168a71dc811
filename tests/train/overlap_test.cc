// On a CPU a collective is done where it is called: all of a delay shows. So the measure of overlap notices what is not
// hidden.
#include "train/overlap_case.h"

#include <gmock/gmock.h>

#include <thread>

namespace perigee::testing {

namespace {

RunOptions small(ShardStage stage) {
    RunOptions options = parse_config(R"(
device: cpu
model: {vocab_size: 64, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 4, num_attention_heads: 2}
attention: {kind: full}
data: {mock_data: true, sequence_length: 32}
train: {steps: 1000, global_batch_size: 8, micro_batch_size: 1}
threads: 1
)",
                                      "overlap", {});
    options.parallel.shard = stage;
    return options;
}

TEST(Overlap, NoDelayIsHiddenOnACpu) {
    Delay const delay{.seconds = 0.005, .queue = [](Queue&, double seconds) {
                          std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
                      }};
    for (ShardStage const stage : {ShardStage::optimizer, ShardStage::weights}) {
        Overlap const found = measure_overlap(small(stage), delay, 0);
        EXPECT_GE(found.collectives, 12) << "a sum and a gather for each of six units";
        EXPECT_GT(found.shown(), 0.6) << name_of(stage);
    }
}

TEST(Overlap, StagesOfAPhantomRankHaveTheSameLosses) {
    auto const expected = losses(small(ShardStage::optimizer), {}, 5);
    EXPECT_LT(expected.back(), expected.front());
    for (ShardStage const stage : {ShardStage::gradients, ShardStage::weights})
        EXPECT_THAT(losses(small(stage), {}, 5), ::testing::Pointwise(::testing::DoubleNear(1e-6), expected))
            << name_of(stage);
}

}  // namespace

}  // namespace perigee::testing
