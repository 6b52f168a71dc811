// Training steps on queues that a race detector watches: every stage of sharding, with data, context and tensor
// parallelism. What orders the queues is complete, and nothing of it is superfluous: without any single wait there is a
// race. A simulated clock shows what the schedule hides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "checkpoint/saver.h"
#include "config/config.h"
#include "model/offload.h"
#include "support/memory_file_system.h"
#include "support/ordered_device.h"
#include "support/ragged_samples.h"
#include "support/thread_comm.h"
#include "train/learner.h"

namespace perigee::testing {
namespace {

constexpr RaggedSamples kData{.samples = 16, .length = 64, .vocab = 96};

struct OrderCase {
    int ranks;
    std::vector<std::string> overrides;
    bool saves = false;  ///< between the first two steps
    std::string str() const { return fmt::format("{} ranks, {}", ranks, fmt::join(overrides, " ")); }
};
std::vector<OrderCase> const kCases = {
    {2, {"parallel.shard=none"}},
    {2, {"parallel.shard=optimizer"}},
    {2, {"parallel.shard=gradients"}},
    {2, {"parallel.shard=weights"}},
    {2, {"parallel.shard=weights", "model.tie_word_embeddings=true"}},
    {4, {"parallel.context=2", "parallel.shard=gradients", "parallel.context_mode=allgather"}},
    {4, {"parallel.context=2", "parallel.tensor=2", "attention.kind=full", "parallel.context_mode=allgather"}},
    {2, {"parallel.context=2", "train.recompute=block*2, attention, none", "parallel.shard=optimizer"}},
    {2, {"parallel.context=2", "parallel.head_groups=2", "train.recompute=block*2, attention, none"}},
    {2, {"parallel.context=2", "parallel.head_groups=2", "attention.kind=full", "parallel.context_mode=allgather"}},
    {4, {"parallel.tensor=2", "parallel.shard=optimizer"}},
    {4, {"parallel.tensor=2", "parallel.shard=weights", "train.recompute=block"}},
    {1, {"train.offload=3"}},
    {2, {"optimizer.offload=true", "parallel.shard=weights"}},
    {2, {"parallel.shard=gradients"}, /*saves=*/true},
    {1, {}, /*saves=*/true},
    {1, {"optimizer.offload=true"}},
    {2, {"train.offload=2", "train.recompute=block", "parallel.shard=weights"}},
    {2,
     {"train.offload=3", "train.recompute=attention, mlp, block*2, none", "train.mlp_chunk=48", "parallel.context=2",
      "parallel.context_mode=ulysses"}},
};

RunOptions options_of(std::vector<std::string> const& overrides) {
    return parse_config(R"(
model: {vocab_size: 96, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 5, num_attention_heads: 4,
        num_key_value_heads: 2}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 4, global_batch_size: 16, micro_batch_size: 2}
parallel: {bucket_mib: 1}
)",
                        "order", overrides);
}

struct Found {
    std::vector<Race> races;
    std::set<WaitSite> sites;
    std::set<std::string> uncounted;
    double seconds = 0;
    int64_t collectives = 0;
    std::vector<double> losses;
};

/// Three steps, an evaluation between them, without the waits at `dropped`. A collective takes `delay`, an operation
/// `seconds_per_byte` of what it works on, a copy to or from the host `per_copied` for each byte.
Found train(OrderCase const& of, void const* dropped = nullptr, double delay = 0, double seconds_per_byte = 0,
            double per_copied = 0) {
    Found found;
    std::mutex mutex;
    MemoryFileSystem saved;
    run_ranks(of.ranks, [&](HostComm& world) {
        RunOptions const options = options_of(of.overrides);
        auto owned = std::make_unique<OrderedDevice>(dropped, per_copied);
        OrderedDevice& device = *owned;
        int64_t collectives = 0;
        auto ops = std::make_unique<OrderedOps>(device, make_host_ops(device, 1), seconds_per_byte);
        MemoryFileSystem files;
        Session session(options, Mesh(options.parallel, world, make_ordered_groups(world, device, delay, collectives)),
                        {std::move(owned), std::move(ops)}, files);
        Learner learner(session);
        learner.initialise(1);
        device.phases().start();
        int64_t const micro = options.train.micro_batch_size, dp = session.mesh().shape().dp;
        std::vector<Batch> batches;
        for (int64_t first = session.mesh().dp_rank() * micro; first < kData.samples; first += dp * micro) {
            batches.emplace_back();
            for (int64_t s = first; s < first + micro; ++s) kData.append(batches.back(), s);
        }
        RunState state;
        std::vector<double> losses;
        Saver saver(saved, world, "/run/checkpoints", {}, session.ops().device());
        for (int step = 0; step < 3; ++step) {
            losses.push_back(learner.step(batches, state).loss);
            if (step == 0 && of.saves) {
                saver.begin(state, learner.tensors(learner.owned()));
                learner.update_after(saver.copied());
            }
            auto const kinds = session.selections(state.step);
            session.model().loss(session.weights(), batches.front(), kinds, session.arena());
            session.arena().settle();
        }
        if (saver.in_flight()) saver.finish();
        std::lock_guard const lock(mutex);
        found.races.insert(found.races.end(), device.races().begin(), device.races().end());
        found.sites.insert(device.sites().begin(), device.sites().end());
        found.uncounted.insert(device.uncounted().begin(), device.uncounted().end());
        found.seconds = device.seconds();
        found.collectives = collectives;
        found.losses = losses;
    });
    return found;
}

TEST(OrderOfQueues, LeavesNoRaceInAnyStageAndLayout) {
    for (size_t i = 0; i < kCases.size(); i += PERIGEE_SANITIZED ? 2 : 1) {
        OrderCase const& of = kCases[i];
        Found found = train(of);
        EXPECT_FALSE(found.sites.empty()) << of.str();
        for (char const* const lane : {kOffloadLane, kMomentsLane, kSaveLane})
            found.uncounted.erase(lane);  // of the host
        EXPECT_THAT(found.uncounted, ::testing::IsEmpty())
            << of.str() << ": what the compute queue waits for is no communication";
        EXPECT_EQ(found.collectives > 0, of.ranks > 1) << of.str();
        for (size_t race = 0; race < std::min<size_t>(found.races.size(), 3); ++race)
            ADD_FAILURE() << of.str() << ": " << found.races[race].earlier << ", then " << found.races[race].later;
    }
}

TEST(OrderOfQueues, HasARaceWithoutAnySingleOneOfItsWaits) {
    if (PERIGEE_SANITIZED) GTEST_SKIP() << "the same steps as in the test before, some hundred times";
    std::map<WaitSite, std::string> sites;
    for (OrderCase const& of : kCases)
        for (WaitSite const& site : train(of).sites) sites.emplace(site, "");
    std::map<std::string, int> kinds;
    for (auto& [site, race] : sites) {
        ++kinds[site.who];
        for (OrderCase const& of : kCases) {
            if (!race.empty()) break;
            if (Found const found = train(of, site.address); !found.races.empty())
                race = fmt::format("{}, then {}", found.races[0].earlier, found.races[0].later);
        }
        EXPECT_FALSE(race.empty()) << "a wait that changes nothing: " << site.who << " at " << site.address;
        fmt::print("without a wait of {}: {}\n", site.who, race);
    }
    EXPECT_GE(kinds["sums for compute"], 1) << "sums begin when gradients are there";
    EXPECT_GE(kinds["compute for sums"], 2) << "slots are free again, and the update has all sums";
    EXPECT_GE(kinds["weights for compute"], 2) << "shares are updated, and slots free again";
    EXPECT_GE(kinds["compute for weights"], 1) << "units are there";
    EXPECT_GE(kinds["offload for compute"], 1) << "activations are there, and slots free again";
    EXPECT_EQ(kinds["save for compute"], 1) << "the state is that after the update";
    EXPECT_EQ(kinds["compute for save"], 1) << "the next update changes nothing before it is copied";
    EXPECT_GE(kinds["compute for offload"], 2) << "slots are free again, and activations back";
}

TEST(OrderOfQueues, HidesAtLeastFourFifthsOfTheTimeOfGathersAndSums) {
    for (char const* const stage : {"none", "optimizer", "gradients", "weights"}) {
        // One micro-batch: sums of whole gradients run beside the last backward of a step alone.
        OrderCase const of{
            2, {fmt::format("parallel.shard={}", stage), "train.micro_batch_size=8", "model.num_hidden_layers=16"}};
        constexpr double kPerByte = 1e-9;
        Found const without = train(of, nullptr, 0, kPerByte);
        // Together half as long as the computation.
        double const delay = 0.5 * without.seconds / static_cast<double>(without.collectives);
        Found const with = train(of, nullptr, delay, kPerByte);
        double const sum = delay * static_cast<double>(with.collectives), more = with.seconds - without.seconds;
        fmt::print("{}: {} collectives, {:.1f}% of their time shows\n", stage, with.collectives, 100 * more / sum);
        EXPECT_LT(more, 0.2 * sum) << stage;
        EXPECT_GT(more, 0) << stage << ": the last sum has nothing to hide behind";
    }
}

TEST(OrderOfQueues, HidesMostOfTheTimeOfGatheredKeysAndTheSumsOfTheirGradients) {
    constexpr double kPerByte = 1e-9;
    auto const shown = [&](std::string const& mode) {
        OrderCase const of{
            2,
            {"parallel.context=2", "parallel.shard=none", "train.micro_batch_size=8", "attention.kind=moba",
             "attention.full_layers.last=0", "model.num_hidden_layers=16", "parallel.context_mode=" + mode}};
        Found const without = train(of, nullptr, 0, kPerByte);
        double const delay = 0.2 * without.seconds / static_cast<double>(without.collectives);
        Found const with = train(of, nullptr, delay, kPerByte);
        double const sum = delay * static_cast<double>(with.collectives);
        fmt::print("{}: {} collectives, {:.1f}% of their time shows\n", mode, with.collectives,
                   100 * (with.seconds - without.seconds) / sum);
        return (with.seconds - without.seconds) / sum;
    };
    EXPECT_LT(shown("auto"), 0.15);
    EXPECT_GT(shown("ulysses"), 0.5) << "heads that are exchanged have nothing to hide behind";
}

TEST(OrderOfQueues, HidesCopiesThatTakeLessTimeThanTheirLayer) {
    auto const of = [](int64_t layers) {
        return OrderCase{
            1, {fmt::format("train.offload={}", layers), "train.recompute=block", "model.num_hidden_layers=16"}};
    };
    constexpr double kPerByte = 1e-9;
    double const without = train(of(0), nullptr, 0, kPerByte).seconds;
    double const copied = 4e-8;
    double const with = train(of(14), nullptr, 0, kPerByte, copied).seconds;
    // Of three steps of eight micro-batches: [128, 32] fp32 of 14 layers, out and in.
    double const copies = 3 * 8 * 2 * 14 * 128 * 32 * 4 * copied;
    fmt::print("copies take {:.0f}% of the computation, {:.1f}% of their time shows\n", 100 * copies / without,
               100 * (with - without) / copies);
    EXPECT_GT(copies, 0.4 * without);
    EXPECT_LT(with - without, 0.1 * copies);
    // Of few layers a copy may take longer than its layer: it has the time of those up to the next turn.
    double const longer = train(of(3), nullptr, 0, kPerByte, 3 * copied).seconds;
    EXPECT_LT(longer - without, 0.1 * 3 * copies * 3 / 14);
}

}  // namespace
}  // namespace perigee::testing
