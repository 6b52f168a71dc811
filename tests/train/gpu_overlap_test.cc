// Collectives hide behind computation: with a delay in each, queued on its lane as a collective between GPUs would be,
// the step grows by less than a fifth of the delays' sum. Prints a line per stage of sharding. The same delays in the
// compute queue, where nothing can hide them, all show.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "device/cuda/cuda_device.h"
#include "train/gpu_spin.h"
#include "train/overlap_case.h"

namespace perigee::testing {

namespace {

RunOptions large(ShardStage stage) {
    RunOptions options = parse_config(R"(
device: cuda
model: {vocab_size: 8192, hidden_size: 2048, intermediate_size: 5632, num_hidden_layers: 12, num_attention_heads: 16,
        num_key_value_heads: 4, head_dim: 128}
attention: {kind: moba, block_size: 512, top_k: 3, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 8192}
train: {steps: 1000, global_batch_size: 8, micro_batch_size: 1}
parallel: {bucket_mib: 1024}
)",
                                      "overlap", {});
    options.parallel.shard = stage;
    return options;
}

RunOptions small(ShardStage stage) {
    RunOptions options = parse_config(R"(
device: cuda
deterministic: true
model: {vocab_size: 512, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 4, num_attention_heads: 2,
        head_dim: 64}
attention: {kind: moba, block_size: 64, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 256}
schedule: {warmup_steps: 1}
train: {steps: 1000, global_batch_size: 8, micro_batch_size: 1}
)",
                                      "overlap", {});
    options.parallel.shard = stage;
    return options;
}

void spin(Queue& queue, double seconds) {
    auto* const of_gpu = dynamic_cast<CudaQueue*>(&queue);
    PERIGEE_CHECK(of_gpu != nullptr, "{} is not a queue of a GPU", queue.name());
    queue_spin(of_gpu->stream(), seconds);
}

/// Of up to so many milliseconds, by chance.
Delay random_delays(int64_t milliseconds, uint64_t seed) {
    auto const state = std::make_shared<std::mt19937_64>(seed);
    return {.seconds = 1e-3, .queue = [state, milliseconds](Queue& queue, double seconds) {
                spin(queue, seconds * static_cast<double>((*state)() % static_cast<uint64_t>(milliseconds)));
            }};
}

/// Two ranks share each sequence: keys are gathered for block-sparse layers, heads exchanged for the full one.
RunOptions shared_sequence() {
    RunOptions options = small(ShardStage::optimizer);
    options.model.num_key_value_heads = 2;
    options.parallel.context = 2;
    return options;
}

Overlap measure(ShardStage stage, bool in_lane) {
    Delay const delay{.in_lane = in_lane, .queue = spin};
    // With `none` all sums fall into the backward of the last micro-batch, a third of the step: they can hide behind it
    // while they take less than it does.
    return measure_overlap(large(stage), delay, 0.25);
}

void print(char const* name, Overlap const& found) {
    std::printf("%-22s %8.2f ms %12ld %9.2f ms %9.2f ms %7.1f%%\n", name, 1e3 * found.step_s,
                static_cast<long>(found.collectives), 1e3 * found.delays_s, 1e3 * found.delayed_step_s,
                100 * found.shown());
}

TEST(GpuLanes, DelaysAndShardingChangeNoLoss) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    constexpr int kSteps = 4;
    auto const expected = losses(small(ShardStage::optimizer), {}, kSteps);
    EXPECT_NE(expected.back(), expected.front()) << "no update";
    for (ShardStage const stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::weights}) {
        auto const prompt = losses(small(stage), {}, kSteps);
        EXPECT_THAT(prompt, ::testing::Pointwise(::testing::DoubleNear(1e-3), expected)) << name_of(stage);
        for (uint64_t seed = 1; seed <= 3; ++seed)
            EXPECT_EQ(losses(small(stage), random_delays(8, seed), kSteps), prompt)
                << name_of(stage) << ", seed " << seed;
    }
}

TEST(GpuLanes, DelaysOfKeysAndHeadsChangeNoLoss) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    constexpr int kSteps = 4;
    for (Recompute const level : {Recompute::none, Recompute::attention, Recompute::block}) {
        RunOptions options = shared_sequence();
        options.train.recompute = to_string(std::vector<Recompute>(4, level));
        auto const prompt = losses(options, {}, kSteps);
        EXPECT_NE(prompt.back(), prompt.front()) << "no update";
        for (uint64_t seed = 1; seed <= 3; ++seed)
            EXPECT_EQ(losses(options, random_delays(8, seed), kSteps), prompt)
                << options.train.recompute << " " << seed;
    }
}

TEST(GpuLanes, OffloadedMomentsChangeNoLoss) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    constexpr int kSteps = 6;
    for (ShardStage const stage : {ShardStage::none, ShardStage::weights}) {
        RunOptions options = small(stage);
        auto const kept = losses(options, {}, kSteps);
        EXPECT_NE(kept.back(), kept.front()) << "no update";
        options.optimizer.offload = true;
        EXPECT_EQ(losses(options, {}, kSteps), kept) << name_of(stage);
        EXPECT_EQ(losses(options, random_delays(8, 1), kSteps), kept) << name_of(stage);
    }
}

TEST(GpuOverlap, DelaysOfCollectivesHideBehindComputationAtLength) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    std::printf("%-22s %11s %12s %12s %12s %8s\n", "parallel.shard", "step", "collectives", "delays", "step then",
                "shown");
    for (ShardStage const stage :
         {ShardStage::none, ShardStage::optimizer, ShardStage::gradients, ShardStage::weights}) {
        Overlap const found = measure(stage, true);
        print(name_of(stage), found);
        EXPECT_LT(found.shown(), 0.2) << name_of(stage);
    }
    Overlap const exposed = measure(ShardStage::optimizer, false);
    print("optimizer, no lanes", exposed);
    // Those after the update may still pass while the host prepares the next step.
    EXPECT_GT(exposed.shown(), 0.5) << "the measure does not notice delays that nothing hides";
}

}  // namespace

}  // namespace perigee::testing
