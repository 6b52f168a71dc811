// Training with quantised products: equal on every layout up to rounding, and bitwise resumable.
#include <gmock/gmock.h>

#include <mutex>

#include "config/config.h"
#include "support/memory_file_system.h"
#include "support/thread_comm.h"
#include "train/trainer.h"

namespace perigee {
namespace {

RunOptions options_of(std::vector<std::string> const& overrides, int ranks) {
    RunOptions options = parse_config(R"(
output_dir: /run
device: cpu
model: {hidden_size: 128, intermediate_size: 256, num_hidden_layers: 2, num_attention_heads: 4, head_dim: 64,
        num_key_value_heads: 2}
attention: {kind: moba, block_size: 32, top_k: 3, full_layers: {last: 1}}
precision: {linear: fp8_block}
data: {mock_data: true, sequence_length: 256}
train: {steps: 4, global_batch_size: 2, micro_batch_size: 1}
schedule: {warmup_steps: 1}
checkpoint: {async: false}
threads: 1
log: {progress: false}
)",
                                      "precision", overrides);
    options = resolve(options, 1, *make_file_system());
    EXPECT_EQ(problems(options, ranks), std::vector<std::string>());
    return options;
}

/// Loss and gradient norm of every step, from the checkpoint in `files` or from the start. Saves after `saved_at`.
std::vector<double> train(std::vector<std::string> const& overrides, int ranks, FileSystem& files,
                          int64_t saved_at = 0) {
    RunOptions const options = options_of(overrides, ranks);
    std::vector<double> figures;
    std::mutex mutex;
    testing::run_ranks(ranks, [&](HostComm& world) {
        Trainer trainer(options, world, files, "");
        while (trainer.state().step < options.train.steps) {
            StepReport const report = trainer.step();
            if (trainer.state().step == saved_at) trainer.save(/*last=*/false);
            std::lock_guard const lock(mutex);
            if (world.rank() == 0) figures.insert(figures.end(), {report.loss, report.grad_norm});
        }
    });
    return figures;
}

TEST(PrecisionOfTraining, IsTheSameOnEveryLayoutButForRounding) {
    testing::MemoryFileSystem files;
    std::vector<double> const alone = train({}, 1, files);
    testing::MemoryFileSystem other;
    std::vector<double> const plain = train({"precision.linear=bf16"}, 1, other);
    ASSERT_EQ(alone.size(), 8u);
    EXPECT_NE(alone, plain);
    for (auto const& [ranks, overrides] : std::vector<std::pair<int, std::vector<std::string>>>{
             {2, {"parallel.data=2"}},
             {2, {"parallel.context=2", "parallel.context_mode=ulysses"}},
             {2, {"parallel.context=2", "parallel.context_mode=allgather"}},
             {2, {"parallel.tensor=2"}},
             {2, {"parallel.shard=weights"}},
             {1, {"train.mlp_chunk=128", "train.recompute=block"}}}) {
        testing::MemoryFileSystem own;
        std::vector<double> const found = train(overrides, ranks, own);
        for (size_t i = 0; i < alone.size(); ++i)
            EXPECT_NEAR(found[i], alone[i], (i % 2 == 0 ? 2e-4 : 5e-3) * alone[i])
                << i << " of " << fmt::format("{}", fmt::join(overrides, " "));
    }
}

std::vector<StepReport> reports(std::vector<std::string> const& overrides) {
    testing::MemoryFileSystem files;
    RunOptions const options = options_of(overrides, 1);
    std::vector<StepReport> found;
    testing::run_ranks(1, [&](HostComm& world) {
        Trainer trainer(options, world, files, "");
        while (trainer.state().step < options.train.steps) found.push_back(trainer.step());
    });
    return found;
}

TEST(PrecisionOfTraining, IsReportedOnRequestAndChangesNothing) {
    testing::MemoryFileSystem files, other;
    EXPECT_EQ(train({}, 1, files), train({"precision.report_every=2"}, 1, other));
    auto const all = reports({"precision.report_every=2"});
    ASSERT_EQ(all.size(), 4u);
    for (size_t step = 0; step < 4; ++step) ASSERT_EQ(all[step].precision.size(), step % 2 == 1 ? 2u : 0u);
    EXPECT_THAT(to_json(all[3]), ::testing::HasSubstr("\"fp8_gradient_underflow_1\":"));
    for (PrecisionReport const& layer : all[3].precision) {
        EXPECT_GT(layer.operands[0]->top, 0) << "of so many tiles some have a maximum that becomes 448";
        for (auto const& operand : layer.operands) {
            ASSERT_TRUE(operand);
            EXPECT_GT(operand->peak, 2);
            EXPECT_LT(operand->peak, 200);
            EXPECT_LT(operand->top, 0.01);
            EXPECT_LT(operand->underflow, 0.01);
        }
    }
    // Products that the backward computes again are not counted again.
    auto const again = reports({"precision.report_every=4", "train.recompute=block"});
    for (size_t layer = 0; layer < 2; ++layer)
        for (size_t i = 0; i < kOperands; ++i) {
            EXPECT_EQ(again[3].precision[layer].operands[i]->peak, all[3].precision[layer].operands[i]->peak);
            EXPECT_EQ(again[3].precision[layer].operands[i]->top, all[3].precision[layer].operands[i]->top);
        }
    auto const edge = reports({"precision.report_every=1", "precision.bf16_layers.last=1"});
    EXPECT_TRUE(edge[0].precision[0].operands[0]);
    EXPECT_FALSE(edge[0].precision[1].operands[0]);
}

void expect_to_resume(std::vector<std::string> const& overrides, int then = 1, int now = 1,
                      std::vector<std::string> more = {}) {
    testing::MemoryFileSystem files;
    std::vector<double> const whole = train(overrides, then, files, 2);
    more.insert(more.end(), overrides.begin(), overrides.end());
    std::vector<double> const rest = train(more, now, files);
    ASSERT_EQ(rest.size(), 4u);
    if (then == now) {
        EXPECT_EQ(std::vector(whole.begin() + 4, whole.end()), rest);
    }
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(rest[i], whole[4 + i], 5e-3 * whole[4 + i]);
}

TEST(PrecisionOfTraining, ResumesBitForBit) { expect_to_resume({}); }

TEST(PrecisionOfTraining, OfMomentsInBf16ResumesBitForBit) {
    std::vector<std::string> const narrow = {"precision.linear=bf16", "optimizer.moments=bf16"};
    expect_to_resume(narrow);
    expect_to_resume({narrow[0], narrow[1], "optimizer.offload=true"});
    expect_to_resume(narrow, 1, 2, {"parallel.shard=weights"});
}

TEST(PrecisionOfTraining, OfMomentsMayChangeWhereARunResumes) {
    for (auto const& [then, now] : {std::pair{"fp32", "bf16"}, {"bf16", "fp32"}}) {
        auto const with = [](std::string const& moments) {
            return std::vector<std::string>{"precision.linear=bf16", "optimizer.moments=" + moments};
        };
        testing::MemoryFileSystem files;
        std::vector<double> const whole = train(with(then), 1, files, 2);
        std::vector<double> const rest = train(with(now), 1, files);
        ASSERT_EQ(rest.size(), 4u);
        EXPECT_EQ(rest[0], whole[4]) << "the same weights";
        for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(rest[i], whole[4 + i], 2e-2 * whole[4 + i]);
    }
}

TEST(PrecisionOfTraining, OfMomentsInBf16DoesNotDependOnTheLayout) {
    testing::MemoryFileSystem files, other, wide;
    std::vector<double> const one = train({"precision.linear=bf16", "optimizer.moments=bf16"}, 1, files);
    std::vector<double> const two =
        train({"precision.linear=bf16", "optimizer.moments=bf16", "parallel.shard=weights"}, 2, other);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-4 * one[i]);
    std::vector<double> const fp32 = train({"precision.linear=bf16"}, 1, wide);
    EXPECT_NE(one, fp32);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], fp32[i], 2e-2 * fp32[i]);
}

}  // namespace
}  // namespace perigee
