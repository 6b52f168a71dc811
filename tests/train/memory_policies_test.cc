// What saves memory changes no bit: training under every policy, on the layouts that share a sequence or a product.
#include <gtest/gtest.h>

#include <mutex>

#include "config/config.h"
#include "support/memory_file_system.h"
#include "support/ragged_samples.h"
#include "support/thread_comm.h"
#include "train/learner.h"

namespace perigee::testing {
namespace {

constexpr RaggedSamples kPolicyData{.samples = 8, .length = 64, .vocab = 96};

using Overrides = std::vector<std::string>;

RunOptions policy_options(Overrides const& overrides) {
    return parse_config(R"(
model: {vocab_size: 96, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 4, num_attention_heads: 4,
        num_key_value_heads: 2}
attention: {kind: moba, block_size: 8, top_k: 3, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 4, global_batch_size: 8, micro_batch_size: 2}
)",
                        "policies", overrides);
}

/// Loss and gradient norm of three steps; what one step leaves wrong shows in the next.
std::vector<double> train(int ranks, Overrides const& overrides) {
    std::vector<double> figures;
    std::mutex mutex;
    run_ranks(ranks, [&](HostComm& world) {
        RunOptions const options = policy_options(overrides);
        auto device = make_host_device();
        auto ops = make_host_ops(*device, 1);
        MemoryFileSystem files;
        Session session(options, Mesh(options.parallel, world), {std::move(device), std::move(ops)}, files);
        Learner learner(session);
        learner.initialise(1);
        int64_t const micro = options.train.micro_batch_size, dp = session.mesh().shape().dp;
        std::vector<Batch> batches;
        for (int64_t first = session.mesh().dp_rank() * micro; first < kPolicyData.samples; first += dp * micro) {
            batches.emplace_back();
            for (int64_t s = first; s < first + micro; ++s) kPolicyData.append(batches.back(), s);
        }
        RunState state;
        std::vector<double> mine;
        for (int step = 0; step < 3; ++step) {
            StepReport const report = learner.step(batches, state);
            mine.push_back(report.loss);
            mine.push_back(report.grad_norm);
        }
        std::lock_guard const lock(mutex);
        if (world.rank() == 0) figures = mine;
    });
    return figures;
}

struct PolicyLayout {
    int ranks;
    Overrides overrides;
};
std::vector<PolicyLayout> const kPolicyLayouts = {
    {2, {"parallel.context=2", "parallel.context_mode=ulysses"}},
    {2, {"parallel.context=2", "parallel.context_mode=allgather"}},
    {2, {"parallel.context=2", "model.qk_norm=true"}},
    {2, {"parallel.context=2", "parallel.context_mode=allgather", "attention.kind=full"}},
    {2, {"parallel.tensor=2", "model.qk_norm=true", "parallel.shard=weights"}},
    {4, {"parallel.context=2", "parallel.tensor=2", "model.qkv_bias=true"}}};

void expect_same_bits(std::vector<char const*> const& policies) {
    size_t number = 0;
    for (PolicyLayout const& layout : kPolicyLayouts) {
        std::vector<double> const kept = train(layout.ranks, layout.overrides);
        ASSERT_EQ(kept.size(), 6u);
        EXPECT_NE(kept[0], kept[2]);
        for (char const* const policy : policies) {
            if (number++ % (PERIGEE_SANITIZED ? 4 : 1) != 0) continue;  // sanitizers see a part
            Overrides with = layout.overrides;
            with.emplace_back(policy);
            EXPECT_EQ(train(layout.ranks, with), kept)
                << policy << " under " << fmt::format("{}", fmt::join(with, " "));
        }
    }
}

TEST(MemoryPolicies, OfRecomputeGiveTheSameBitsUnderEveryLayout) {
    expect_same_bits({"train.recompute=elementwise", "train.recompute=mlp", "train.recompute=attention",
                      "train.recompute=block", "train.recompute=block*2, attention, none",
                      "train.recompute=attention, mlp, elementwise, block"});
}

TEST(MemoryPolicies, OfOffloadGiveTheSameBitsUnderEveryLayout) {
    expect_same_bits({"train.offload=1", "train.offload=2", "optimizer.offload=true"});
}

TEST(MemoryPolicies, OfMlpChunkGiveTheSameButForTheOrderOfSums) {
    for (PolicyLayout const& layout : kPolicyLayouts) {
        std::vector<double> const kept = train(layout.ranks, layout.overrides);
        for (char const* const chunk : {"train.mlp_chunk=64", "train.mlp_chunk=24", "train.mlp_chunk=7"}) {
            Overrides with = layout.overrides;
            with.emplace_back(chunk);
            with.emplace_back("train.recompute=block*3, attention");
            with.emplace_back("train.offload=2");
            std::vector<double> const found = train(layout.ranks, with);
            for (size_t i = 0; i < kept.size(); ++i)
                EXPECT_NEAR(found[i], kept[i], 2e-6 * kept[i]) << fmt::format("{}", fmt::join(with, " "));
        }
    }
}

}  // namespace
}  // namespace perigee::testing
