// Training adapters on a GPU: close to the CPU, bitwise reproducible, the same with CUDA graphs, and an unchanged base.
#include <gtest/gtest.h>

#include <cmath>

#include "config/config.h"
#include "model/tiny_model.h"
#include "train/learner.h"

namespace perigee::testing {

namespace {

struct TrainedAdapters {
    std::vector<double> losses, norms;
    std::vector<float> weights;  ///< what trains, in the optimizer's precision
    std::string base;
};

TrainedAdapters train(std::vector<std::string> const& overrides) {
    RunOptions const options = resolve(parse_config(R"(
model: {vocab_size: 512, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 3, num_attention_heads: 4,
        num_key_value_heads: 2, head_dim: 64, qk_norm: true, qkv_bias: true}
attention: {kind: moba, block_size: 64, top_k: 2, full_layers: {last: 1}}
lora: {rank: 8, alpha: 12}
data: {mock_data: true, sequence_length: 512}
train: {steps: 12, global_batch_size: 2, micro_batch_size: 1, recompute: mlp}
optimizer: {lr: 0.003}
deterministic: true
)",
                                                    "tiny", overrides),
                                       1, *make_file_system());
    auto const world = make_single_host_comm();
    auto const files = make_file_system();
    Session session(options, *world, *files);
    Learner learner(session);
    learner.initialise(1);
    RunState state;
    TrainedAdapters result;
    for (uint64_t step = 0; step < 12; ++step) {
        std::vector<Batch> const batches = {random_batch({256, 130, 126}, 512, 2 * step),
                                            random_batch({512}, 512, 2 * step + 1)};
        StepReport const report = learner.step(batches, state);
        result.losses.push_back(report.loss);
        result.norms.push_back(report.grad_norm);
    }
    session.check_frozen();
    result.base = session.base();
    for (StoredTensor const& tensor : learner.tensors({session.layout().whole()})) {
        if (tensor.name.starts_with("optimizer")) continue;
        std::vector<float> values(static_cast<size_t>(tensor.values.size()));
        session.ops().download(values.data(), tensor.values);
        result.weights.insert(result.weights.end(), values.begin(), values.end());
    }
    return result;
}

TEST(GpuLora, TrainsAsTheCpuDoesAndLeavesTheBase) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    TrainedAdapters const gpu = train({"device=cuda"}), cpu = train({"device=cpu"});
    for (size_t step = 0; step < gpu.losses.size(); ++step) {
        EXPECT_NEAR(gpu.losses[step] / cpu.losses[step], 1, 0.01) << step;
        EXPECT_NEAR(gpu.norms[step] / cpu.norms[step], 1, 0.1) << step;
    }
    EXPECT_GT(relative_error(gpu.weights, train({"device=cuda", "optimizer.lr=1e-9"}).weights), 0.01) << "they train";
}

TEST(GpuLora, HasTheSameBitsEveryTimeAndWithGraphs) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    TrainedAdapters const one = train({"device=cuda", "train.cuda_graphs=false"});
    for (bool const graphs : {true, false}) {
        TrainedAdapters const again = train({"device=cuda", fmt::format("train.cuda_graphs={}", graphs)});
        EXPECT_EQ(again.losses, one.losses);
        EXPECT_EQ(again.weights, one.weights);
        EXPECT_EQ(again.base, one.base);
    }
}

TEST(GpuLora, TrainsUnderDropoutAsTheCpuDoes) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    TrainedAdapters const gpu = train({"device=cuda", "lora.dropout=0.3"}),
                          cpu = train({"device=cpu", "lora.dropout=0.3"});
    for (size_t step = 0; step < gpu.losses.size(); ++step)
        EXPECT_NEAR(gpu.losses[step] / cpu.losses[step], 1, 0.01) << step;
    EXPECT_NEAR(gpu.norms[0] / cpu.norms[0], 1, 0.05) << "of B, behind the dropout of its inputs";
}

TEST(GpuLora, FreezesWhatPatternsName) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    std::vector<std::string> const frozen = {
        "lora.rank=0", "train.freeze=[\"*norm.weight\", \"model.layers.0.*\", model.embed_tokens.weight]"};
    auto const with = [&](std::initializer_list<char const*> others) {
        auto overrides = frozen;
        overrides.insert(overrides.end(), others.begin(), others.end());
        return train(overrides);
    };
    TrainedAdapters const gpu = with({"device=cuda"}), cpu = with({"device=cpu"});
    for (size_t step = 0; step < gpu.losses.size(); ++step) {
        EXPECT_NEAR(gpu.losses[step] / cpu.losses[step], 1, 0.01) << step;
        EXPECT_NEAR(gpu.norms[step] / cpu.norms[step], 1, 0.1) << step;
    }
    double const trained = relative_error(gpu.weights, with({"device=cuda", "optimizer.lr=1e-9"}).weights);
    EXPECT_GT(trained, 0.1);
    EXPECT_LT(relative_error(gpu.weights, cpu.weights), trained / 4);
}

}  // namespace

}  // namespace perigee::testing
