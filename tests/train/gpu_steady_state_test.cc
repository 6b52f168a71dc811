// On a GPU, 1,000 steps over documents of ever other lengths take no byte that the first few did not take.
#include <gtest/gtest.h>

#include <algorithm>

#include "config/config.h"
#include "model/tiny_model.h"
#include "train/learner.h"

namespace perigee::testing {

namespace {

constexpr int64_t kTokens = 512;
constexpr uint64_t kMostDocuments = 40;

RunOptions tiny() {
    RunOptions options = parse_config(R"(
device: cuda
model: {vocab_size: 512, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 3, num_attention_heads: 4,
        num_key_value_heads: 2, head_dim: 64}
attention: {kind: moba, block_size: 64, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 512}
train: {steps: 2000, global_batch_size: 2, micro_batch_size: 1, recompute: elementwise}
optimizer: {stochastic_rounding: true}
)",
                                      "tiny", {});
    return resolve(options, 1, *make_file_system());
}

/// kTokens in documents of random lengths, some of them empty.
Batch packed(uint64_t documents, uint64_t seed) {
    Philox const random(seed, Purpose::mock_data);
    std::vector<int64_t> borders = {0, kTokens};
    for (uint64_t i = 1; i < documents; ++i) borders.push_back(static_cast<int64_t>(random.below(i, kTokens + 1)));
    std::ranges::sort(borders);
    std::vector<int64_t> lengths;
    for (size_t i = 1; i < borders.size(); ++i) lengths.push_back(borders[i] - borders[i - 1]);
    return random_batch(lengths, 512, seed);
}

/// Counts what the whole GPU has in use: nothing else may run on it.
TEST(GpuSteadyState, AThousandStepsTakeNoMoreMemory) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    auto const world = make_single_host_comm();
    auto const files = make_file_system();
    RunOptions const options = tiny();
    Session session(options, *world, *files);
    Learner learner(session);
    learner.initialise(1);
    RunState state;
    auto const step = [&](uint64_t number) {
        // Early steps have the most documents, what scratch memory grows with.
        uint64_t const most = number < 3 ? kMostDocuments : 1 + number % kMostDocuments;
        return learner.step({packed(most, 2 * number), packed(kMostDocuments, 2 * number + 1)}, state);
    };
    for (uint64_t i = 0; i < 5; ++i) step(i);
    session.ops().device().synchronize();
    int64_t const used = session.ops().device().used_bytes(), growths = session.arena().growths();
    ASSERT_GT(used, 0);
    for (uint64_t i = 5; i < 1005; ++i) {
        ASSERT_FALSE(step(i).skipped);
        ASSERT_EQ(session.ops().device().used_bytes(), used) << "step " << i;
        ASSERT_EQ(session.arena().growths(), growths) << "step " << i;
    }
}

}  // namespace

}  // namespace perigee::testing
