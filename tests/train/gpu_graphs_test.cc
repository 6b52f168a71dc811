// Training with CUDA graphs gives the bits of training without, and a micro-batch that comes again is indeed replayed.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "commands/bench/timed_ops.h"
#include "config/config.h"
#include "model/tiny_model.h"
#include "train/learner.h"

namespace perigee::testing {

namespace {

/// Counts the micro-batches, and those whose operations the host queued itself.
class CountingOps : public TimedOps {
  public:
    using TimedOps::TimedOps;
    void repeat(std::span<int64_t const> key, std::function<void()> const& body) override {
        ++repeats;
        TimedOps::repeat(key, [&] {
            ++bodies;
            body();
        });
    }
    int64_t repeats = 0, bodies = 0;
};

RunOptions tiny(bool deterministic, bool graphs) {
    RunOptions options = parse_config(R"(
device: cuda
model: {vocab_size: 512, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 3, num_attention_heads: 4,
        num_key_value_heads: 2, head_dim: 64, qk_norm: true}
attention: {kind: moba, block_size: 64, top_k: 2, full_layers: {last: 1}, schedule: [{step: 20, kind: full}]}
data: {mock_data: true, sequence_length: 512}
train: {steps: 30, global_batch_size: 3, micro_batch_size: 1, recompute: mlp}
schedule: {warmup_steps: 5, decay: cosine}
optimizer: {lr: 0.003, stochastic_rounding: true}
)",
                                      "tiny", {});
    options.deterministic = deterministic;
    options.train.cuda_graphs = graphs;
    return resolve(options, 1, *make_file_system());
}

constexpr uint64_t kSteps = 30, kMicroBatches = 3;

struct TrainedByGraphs {
    std::vector<double> losses, participation;
    std::vector<uint16_t> weights;
    int64_t repeats = 0, bodies = 0;
};

/// The lengths of a step's documents: mostly the same, sometimes others, between which the tables of documents change.
std::vector<int64_t> lengths(uint64_t step) {
    if (step % 5 == 3) return {512};
    if (step == 7) return {100, 1, 411};
    return {256, 0, 130, 126};
}

TrainedByGraphs train(RunOptions const& options, std::function<float(uint64_t)> const& weight) {
    auto const world = make_single_host_comm();
    auto const files = make_file_system();
    Machine machine = make_machine(options);
    auto counting = std::make_unique<CountingOps>(*machine.ops);
    CountingOps& ops = *counting;
    Session session(options, Mesh(options.parallel, *world), {nullptr, std::move(counting)}, *files);
    Learner learner(session);
    learner.initialise(1);
    RunState state;
    TrainedByGraphs result;
    for (uint64_t step = 0; step < kSteps; ++step) {
        std::vector<Batch> batches;
        for (uint64_t i = 0; i < kMicroBatches; ++i) {
            batches.push_back(random_batch(lengths(step), 512, kMicroBatches * step + i));
            batches.back().weights_T.assign(512, weight(step));
        }
        StepReport const report = learner.step(batches, state);
        result.losses.push_back(report.loss);
        for (auto const& share : report.participation) result.participation.push_back(share.value());
        if (step % 8 == 6) {  // a validation, the first of which takes more memory than a step
            result.losses.push_back(session.model()
                                        .loss(session.weights(), random_batch({700, 900, 1}, 512, 9999),
                                              session.selections(state.step), session.arena())
                                        .nll);
            session.arena().settle();
        }
    }
    TensorView const weights = session.weights().flat();
    result.weights.resize(static_cast<size_t>(weights.size()));
    session.ops().download(result.weights.data(), weights);
    result.repeats = ops.repeats, result.bodies = ops.bodies;
    return result;
}

TEST(GpuGraphs, GiveTheBitsOfTrainingWithoutThem) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    for (bool deterministic : {true, false}) {
        auto const one = [](uint64_t) { return 1.0f; };
        TrainedByGraphs const plain = train(tiny(deterministic, false), one),
                              replayed = train(tiny(deterministic, true), one);
        EXPECT_EQ(plain.bodies, kSteps * kMicroBatches);
        EXPECT_EQ(replayed.repeats, kSteps * kMicroBatches);
        // Queued by the host are a micro-batch that comes for the first time and for the second, as the first of its
        // step and as a later one; again where memory has moved or kinds of attention have changed meanwhile; and those
        // of the documents that come once.
        EXPECT_GE(replayed.bodies, 2 * 2 * 2 * 2 + 3);
        EXPECT_LE(replayed.bodies, 45);
        ASSERT_TRUE(std::isfinite(plain.losses.back()));
        if (!deterministic) continue;  // cuDNN adds up in any order
        EXPECT_EQ(replayed.losses, plain.losses);
        EXPECT_EQ(replayed.weights, plain.weights);
    }
}

/// The shares of each layer in the first step, on the CPU.
std::vector<std::optional<double>> participation_on_cpu(RunOptions options) {
    options.device = DeviceChoice::cpu;
    auto const world = make_single_host_comm();
    auto const files = make_file_system();
    Session session(options, *world, *files);
    Learner learner(session);
    learner.initialise(1);
    std::vector<Batch> batches;
    for (uint64_t i = 0; i < kMicroBatches; ++i) {
        batches.push_back(random_batch(lengths(0), 512, i));
        batches.back().weights_T.assign(512, 1.0f);
    }
    RunState state;
    return learner.step(batches, state).participation;
}

TEST(GpuGraphs, LeaveParticipationAsItIs) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    auto const one = [](uint64_t) { return 1.0f; };
    TrainedByGraphs const silent = train(tiny(true, true), one);
    RunOptions asked = tiny(true, false), replayed = tiny(true, true);
    asked.log.participation_every = replayed.log.participation_every = 1;
    TrainedByGraphs const plain = train(asked, one), again = train(replayed, one);
    EXPECT_LT(again.bodies, plain.bodies);
    EXPECT_EQ(plain.losses, silent.losses);
    EXPECT_EQ(again.losses, silent.losses);
    ASSERT_EQ(plain.participation.size(), 3 * kSteps);
    EXPECT_EQ(again.participation, plain.participation);
    auto const on_cpu = participation_on_cpu(asked);
    ASSERT_EQ(on_cpu.size(), 3u);
    for (size_t layer = 0; layer < 3; ++layer)
        EXPECT_NEAR(plain.participation[layer], *on_cpu[layer], 0.02 * *on_cpu[layer]) << layer;
}

TEST(GpuGraphs, AreNotReplayedWhereTheLossIsScaledOtherwise) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    auto const changing = [](uint64_t step) { return 1.0f + 0.125f * static_cast<float>(step); };
    TrainedByGraphs const plain = train(tiny(true, false), changing), replayed = train(tiny(true, true), changing);
    EXPECT_EQ(replayed.bodies, kSteps * kMicroBatches);
    EXPECT_EQ(replayed.losses, plain.losses);
    EXPECT_EQ(replayed.weights, plain.weights);
}

}  // namespace

}  // namespace perigee::testing
