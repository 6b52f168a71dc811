// How evenly tokens take part in the gradient, as training reports it: the same on every layout, and nothing else
// changes.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "config/config.h"
#include "support/memory_file_system.h"
#include "support/thread_comm.h"
#include "train/participation.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using ::testing::HasSubstr, ::testing::Not;

std::vector<StepReport> steps_of(std::vector<std::string> const& overrides, int ranks = 1) {
    RunOptions options = parse_config(R"(
output_dir: /run
device: cpu
model: {hidden_size: 64, intermediate_size: 64, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2}
attention: {kind: moba, block_size: 32, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 128}
train: {steps: 4, global_batch_size: 4, micro_batch_size: 2}
checkpoint: {every: 0}
threads: 1
log: {progress: false, participation_every: 2}
)",
                                      "participation", overrides);
    options = resolve(options, 1, *make_file_system());
    EXPECT_EQ(problems(options, ranks), std::vector<std::string>());
    std::vector<StepReport> found;
    std::mutex mutex;
    testing::MemoryFileSystem files;
    testing::run_ranks(ranks, [&](HostComm& world) {
        Trainer trainer(options, world, files, "");
        while (trainer.state().step < options.train.steps) {
            StepReport const report = trainer.step();
            std::lock_guard const lock(mutex);
            if (world.rank() == 0) found.push_back(report);
        }
    });
    return found;
}

TEST(ParticipationOfTokens, IsTheSquareOfTheSumOverTokensTimesSquares) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    auto const world = make_single_host_comm();
    RunOptions options;
    options.log.participation_every = 3;
    options.model.hidden_size = 4, options.model.num_hidden_layers = 3;
    options.train.micro_batch_size = 2, options.data.sequence_length = 2;
    Participation participation(*ops, options, {});
    EXPECT_TRUE(participation.begin(4).empty());
    EXPECT_TRUE(participation.report(*world, 8).empty());
    float* const scales = participation.begin(6).as<float>();
    float const none = std::numeric_limits<float>::infinity();
    // Norms are sqrt(4) over the scale. Two micro-batches of 4 tokens; the last layer is not trained.
    std::ranges::copy(std::vector<float>{2, 2.0f / 3, none, none, 1, 1, 1, 1}, scales);
    participation.add();
    std::ranges::copy(std::vector<float>{none, none, none, none, 1, 1, 1, 1}, scales);
    participation.add();
    auto const found = participation.report(*world, 8);
    ASSERT_EQ(found.size(), 3u);
    EXPECT_NEAR(*found[0], 16.0 / (8 * 10), 1e-6) << "norms 1, 3 and six zeros";
    EXPECT_NEAR(*found[1], 1, 1e-6);
    EXPECT_FALSE(found[2]);
}

TEST(ParticipationOfTokens, IsReportedOnRequestAndChangesNothing) {
    auto const with = steps_of({}), without = steps_of({"log.participation_every=0"});
    ASSERT_EQ(with.size(), 4u);
    for (size_t step = 0; step < 4; ++step) {
        EXPECT_EQ(with[step].loss, without[step].loss);
        EXPECT_EQ(with[step].grad_norm, without[step].grad_norm);
        EXPECT_EQ(with[step].participation.size(), step % 2 == 1 ? 3u : 0u);
        EXPECT_TRUE(without[step].participation.empty());
        for (auto const& share : with[step].participation) {
            EXPECT_GT(share, 0.1);
            EXPECT_LE(share, 1.0);
        }
    }
    EXPECT_THAT(to_json(with[1]), HasSubstr("\"participation_2\":"));
    EXPECT_THAT(to_json(with[0]), Not(HasSubstr("participation")));
}

TEST(ParticipationOfTokens, IsTheSameOnEveryLayout) {
    auto const alone = steps_of({});
    for (auto const& [ranks, overrides] :
         std::vector<std::pair<int, std::vector<std::string>>>{{1, {"train.micro_batch_size=4"}},
                                                               {1, {"train.recompute=block"}},
                                                               {2, {"parallel.data=2"}},
                                                               {2, {"parallel.context=2"}},
                                                               {2, {"parallel.tensor=2"}},
                                                               {1, {"train.offload=1"}},
                                                               {2, {"parallel.shard=weights"}}}) {
        auto const found = steps_of(overrides, ranks);
        for (size_t layer = 0; layer < 3; ++layer)
            EXPECT_NEAR(*found[1].participation[layer], *alone[1].participation[layer], 1e-4)
                << layer << " " << fmt::format("{}", fmt::join(overrides, " "));
    }
}

TEST(ParticipationOfTokens, FrozenLayersAtTheBottomHaveNone) {
    auto const found =
        steps_of({"train.freeze=[model.embed_tokens.weight, 'model.layers.0.*']", "model.tie_word_embeddings=false"});
    EXPECT_FALSE(found[1].participation[0]);
    EXPECT_TRUE(found[1].participation[1]);
    EXPECT_THAT(to_json(found[1]), Not(HasSubstr("participation_0")));
    // Offloaded activations come back in all layers, frozen or not.
    EXPECT_FALSE(steps_of({"train.freeze=[model.embed_tokens.weight, 'model.layers.0.*']",
                           "model.tie_word_embeddings=false", "train.offload=1"})[1]
                     .participation[0]);
}

}  // namespace
}  // namespace perigee
