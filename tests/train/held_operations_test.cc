// Operations of a pass may be queued later than they are called, in their order: nothing that they name in memory of
// the host has gone or changed by then.
#include <gtest/gtest.h>

#include "ops/digest.h"
#include "train/overlap_case.h"

namespace perigee::testing {

namespace {

/// Runs the operations of a pass when told to, and at its end.
class HeldOps final : public ObservedOps {
  public:
    using ObservedOps::ObservedOps;
    void repeat(std::span<int64_t const>, std::function<void()> const& body) override {
        holding_ = true;
        body();
        run_held();
        holding_ = false;
    }
    void run(Operation const& operation) override {
        if (holding_ && can_wait(operation)) {
            held_.push_back(operation);
            return;
        }
        run_held();
        ObservedOps::run(operation);
    }
    void run_held() {
        most = std::max(most, held_.size());
        for (Operation const& operation : std::exchange(held_, {})) ObservedOps::run(operation);
    }
    size_t most = 0;  ///< at a time

  private:
    bool holding_ = false;
    std::vector<Operation> held_;
};

RunOptions options_of(ParallelOptions const& parallel) {
    RunOptions options = parse_config(R"(
device: cpu
model: {vocab_size: 64, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, num_attention_heads: 8,
        num_key_value_heads: 4, qk_norm: true}
attention: {kind: moba, block_size: 8, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 10, global_batch_size: 8, micro_batch_size: 1, recompute: block}
threads: 1
)",
                                      "held operations", {});
    options.parallel = parallel;
    return options;
}

TEST(HeldOperations, GiveTheLossesOfPromptOnesInEveryLayoutAndStage) {
    constexpr int kSteps = 4;
    std::vector<ParallelOptions> layouts;
    for (ShardStage const stage : {ShardStage::none, ShardStage::optimizer, ShardStage::gradients, ShardStage::weights})
        layouts.push_back({.shard = stage});
    for (ContextMode const mode : {ContextMode::ulysses, ContextMode::allgather, ContextMode::automatic})
        layouts.push_back({.tensor = 2, .context = 2, .context_mode = mode, .shard = ShardStage::optimizer});
    for (ParallelOptions const& parallel : layouts) {
        SCOPED_TRACE(fmt::format("tensor {}, context {}, {} sharded", parallel.tensor, parallel.context,
                                 name_of(parallel.shard)));
        auto const expected = losses(options_of(parallel), {}, kSteps);
        EXPECT_NE(expected.back(), expected.front()) << "no update";
        Delay delay;
        HeldOps* ops = nullptr;
        PhantomRank rank(options_of(parallel), delay, [&](Ops& inner) {
            auto holding = std::make_unique<HeldOps>(inner);
            ops = holding.get();
            return holding;
        });
        delay.before = [&] { ops->run_held(); };
        std::vector<double> held;
        for (int i = 0; i < kSteps; ++i) held.push_back(rank.step());
        EXPECT_EQ(held, expected);
        EXPECT_GE(ops->most, 3u) << "operations at a time";
    }
}

}  // namespace

}  // namespace perigee::testing
