#include "app/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/dry_run.h"
#include "config/config.h"
#include "model/llama.h"
#include "support/thread_comm.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

RunOptions tiny() {
    RunOptions options;
    options.model.vocab_size = 320;
    options.model.hidden_size = 48;
    options.model.intermediate_size = 80;
    options.model.num_hidden_layers = 3;
    options.model.num_attention_heads = 4;
    options.model.num_key_value_heads = 2;
    options.attention.moba = {.block_size = 8, .top_k = 3};
    options.attention.full_layers.last = 1;
    options.data.sequence_length = 64;
    options.train.micro_batch_size = 2;
    options.train.global_batch_size = 8;
    return options;
}

/// Peak of the arena in a step that really computes.
int64_t real_peak(RunOptions const& options, Comm& world) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    Mesh const mesh(options.parallel, world);
    ParamLayout const layout(llama_params(options.model), mesh.shape().tp, mesh.tp_rank());
    Llama model(options.model, options.attention.moba, layout, mesh, *ops);
    std::vector<float> weights(static_cast<size_t>(layout.size())), grads(weights.size());
    TensorView const weights_view(weights.data(), {layout.size()});
    initialise(*ops, layout, {{layout.whole(), weights_view}}, 1);
    Batch batch;
    int64_t const length = options.data.sequence_length, tokens = length * options.train.micro_batch_size;
    for (int64_t t = 0; t < tokens; ++t) {
        batch.ids_T.push_back(static_cast<int32_t>(t * 7 % options.model.vocab_size));
        batch.targets_T.push_back(static_cast<int32_t>((t * 7 + 7) % options.model.vocab_size));
        batch.weights_T.push_back(1);
        batch.positions_T.push_back(static_cast<int32_t>(t % length));
        if (t % length == 0) batch.cu_seqlens.push_back(static_cast<int32_t>(t));
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(tokens));
    Arena arena(*device);
    auto const kinds = layer_kinds(options.attention, options.model.num_hidden_layers, 0);
    double const loss = model.loss_and_gradient(weights_view, {.grads = TensorView(grads.data(), {layout.size()})},
                                                batch, kinds, arena);
    EXPECT_GT(mesh.dp_cp().sum(loss), 0);
    return arena.peak_bytes();
}

TEST(StepMemory, IsWhatARealStepTakes) {
    RunOptions options = tiny();
    auto const world = make_single_comm();
    EXPECT_EQ(step_memory(options, 1).activations, real_peak(options, *world));
    options.model.qk_norm = true;
    options.attention.kind = AttentionKind::full;
    options.data.sequence_length = 1024;
    EXPECT_EQ(step_memory(options, 1).activations, real_peak(options, *world));
    EXPECT_EQ(step_memory(options, 1).logits, 2048 * 320 * 4);
}

TEST(StepMemory, IsThatOfEveryRankOfALayout) {
    for (auto const& [tensor, context, mode] : {std::tuple{2, 1, ContextMode::automatic},
                                                {1, 2, ContextMode::ulysses},
                                                {1, 4, ContextMode::allgather},
                                                {2, 2, ContextMode::allgather}}) {
        RunOptions options = tiny();
        options.parallel = {.tensor = tensor, .context = context, .context_mode = mode};
        testing::run_ranks(tensor * context, [&](Comm& world) {
            EXPECT_EQ(step_memory(options, world.size()).activations, real_peak(options, world))
                << tensor << " x " << context;
        });
    }
}

TEST(StepMemory, CountsTheMostDemandingAttentionOfTheSchedule) {
    RunOptions options = tiny();
    options.data.sequence_length = 4096;
    options.attention.moba.top_k = 33;  // the choice takes 4 MiB per layer
    int64_t const moba = step_memory(options, 1).activations;
    options.attention.kind = AttentionKind::full;
    EXPECT_LT(step_memory(options, 1).activations, moba);
    options.attention.schedule = {{.step = 10, .kind = AttentionKind::moba}};
    EXPECT_EQ(step_memory(options, 1).activations, moba);
}

TEST(StepMemory, OfAModelThatFitsNoMachineIsKnownAtOnce) {
    RunOptions options = tiny();
    options.model.hidden_size = 8192;
    options.model.intermediate_size = 28672;
    options.model.num_hidden_layers = 80;
    options.model.num_attention_heads = 64;
    options.model.num_key_value_heads = 8;
    options.data.sequence_length = 65536;
    // Each layer keeps at least x, normed, q, o, mid, mid_normed and 3 F for every token.
    int64_t const least = 2 * 65536 * int64_t{80} * (6 * 8192 + 3 * 28672) * 4;
    EXPECT_GT(step_memory(options, 1).activations, least);
    EXPECT_LT(step_memory(options, 1).activations, 2 * least);
}

std::string report(RunOptions const& options, int world_size) {
    ::testing::internal::CaptureStdout();
    print_check(options, world_size);
    return ::testing::internal::GetCapturedStdout();
}

TEST(Check, PrintsAConfigurationThatReadsBack) {
    RunOptions const options = tiny();
    EXPECT_EQ(to_yaml(parse_config(report(options, 2), "f.yaml", {})), to_yaml(options));
}

TEST(Check, PrintsLayoutParametersMemoryAndWork) {
    RunOptions const options = tiny();
    std::string const text = report(options, 2);
    EXPECT_THAT(text, HasSubstr("2 ranks = data 2 x context 1 x tensor 1\n"));
    EXPECT_THAT(text, HasSubstr("global batch of 8 samples = data 2 x accumulation 2 x micro-batch 2\n"));
    EXPECT_THAT(text, HasSubstr("512 tokens per step, 5.12e+05 in the run\n"));
    // Embedding and classifier, the final norm, and per layer q, k, v, o, three MLP matrices and two norms.
    int64_t const parameters = 2 * 320 * 48 + 48 + 3 * (48 * 48 + 2 * 48 * 24 + 48 * 48 + 3 * 48 * 80 + 2 * 48);
    EXPECT_EQ(parameters, 86352);
    EXPECT_THAT(text, HasSubstr("# parameters: 86,352\n"));
}

}  // namespace
}  // namespace perigee
