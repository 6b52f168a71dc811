// Where other ranks take part in a pass, its operations between their collectives are replayed as CUDA graphs. That
// changes no bit, in any layout and stage of sharding.
#include <gtest/gtest.h>

#include "ops/cuda/cuda_ops.h"
#include "train/overlap_case.h"

namespace perigee::testing {

namespace {

constexpr int64_t kLayers = 3;

RunOptions options_of(ParallelOptions const& parallel, bool graphs) {
    RunOptions options = parse_config(R"(
device: cuda
deterministic: true
model: {vocab_size: 512, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 3, num_attention_heads: 8,
        num_key_value_heads: 4, head_dim: 64, qk_norm: true}
attention: {kind: moba, block_size: 64, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 512}
schedule: {warmup_steps: 1}
train: {steps: 1000, global_batch_size: 8, micro_batch_size: 1}
)",
                                      "parts", {});
    options.parallel = parallel;
    options.train.cuda_graphs = graphs;
    return options;
}

struct TrainedInParts {
    std::vector<double> losses;
    std::vector<int64_t> replays;  ///< of each step
};

TrainedInParts train(ParallelOptions const& parallel, bool graphs) {
    constexpr int kSteps = 8;
    Delay delay;
    PhantomRank rank(options_of(parallel, graphs), delay);
    auto const& ops = dynamic_cast<CudaOps&>(rank.ops());
    TrainedInParts found;
    for (int i = 0; i < kSteps; ++i) {
        int64_t const before = ops.replays();
        found.losses.push_back(rank.step());
        found.replays.push_back(ops.replays() - before);
    }
    return found;
}

TEST(GpuPartsOfPasses, BetweenCollectivesAreReplayedAndChangeNoBit) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    std::vector<ParallelOptions> layouts;
    for (ShardStage const stage : {ShardStage::none, ShardStage::optimizer, ShardStage::gradients, ShardStage::weights})
        layouts.push_back({.shard = stage});
    for (ContextMode const mode : {ContextMode::ulysses, ContextMode::allgather, ContextMode::automatic})
        layouts.push_back({.tensor = 2, .context = 2, .context_mode = mode, .shard = ShardStage::weights});
    layouts.push_back({.tensor = 4, .shard = ShardStage::none});
    for (ParallelOptions const& parallel : layouts) {
        SCOPED_TRACE(fmt::format("tensor {}, context {}, {} sharded", parallel.tensor, parallel.context,
                                 name_of(parallel.shard)));
        TrainedInParts const plain = train(parallel, false), replayed = train(parallel, true);
        EXPECT_EQ(replayed.losses, plain.losses);
        EXPECT_NE(plain.losses.back(), plain.losses.front()) << "no update";
        EXPECT_EQ(plain.replays.back(), 0);
        EXPECT_LT(replayed.replays.front(), replayed.replays.back());
        EXPECT_GT(replayed.replays.back(), kLayers) << "a forward and the backward of every block";
    }
}

}  // namespace

}  // namespace perigee::testing
