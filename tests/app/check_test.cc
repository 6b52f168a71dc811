#include "app/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "app/dry_run.h"
#include "app/fit.h"
#include "config/config.h"
#include "config/device_rates.h"
#include "model/llama.h"
#include "ops/gpu_attention.h"
#include "support/thread_comm.h"
#include "train/progress.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunOptions tiny() {
    RunOptions options;
    options.device = DeviceChoice::cpu;
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

TEST(StepCost, CountsTheMostDemandingAttentionOfTheSchedule) {
    RunOptions options = tiny();
    options.data.sequence_length = 4096;
    options.attention.moba.top_k = 33;  // the choice takes 4 MiB per layer
    int64_t const moba = step_cost(options, 1).memory.activations;
    options.attention.kind = AttentionKind::full;
    EXPECT_LT(step_cost(options, 1).memory.activations, moba);
    options.attention.schedule = {{.step = 10, .kind = AttentionKind::moba}};
    EXPECT_EQ(step_cost(options, 1).memory.activations, moba);
}

TEST(StepCost, OfAModelThatFitsNoMachineIsKnownAtOnce) {
    RunOptions options = tiny();
    options.model.hidden_size = 8192;
    options.model.intermediate_size = 28672;
    options.model.num_hidden_layers = 80;
    options.model.num_attention_heads = 64;
    options.model.num_key_value_heads = 8;
    options.data.sequence_length = 65536;
    // Each layer keeps at least x, normed, q, o, mid, mid_normed and 3 F for every token.
    int64_t const least = 2 * 65536 * int64_t{80} * (6 * 8192 + 3 * 28672) * 4;
    EXPECT_GT(step_cost(options, 1).memory.activations, least);
    EXPECT_LT(step_cost(options, 1).memory.activations, 2 * least);
}

TEST(StepCost, OnAGpuHasWeightsInHalfAndTheOptimizersInFull) {
    RunOptions options = tiny();
    options.model.head_dim = 32;  // which the GPU's kernels take
    StepMemory const cpu = step_cost(options, 1).memory;
    options.device = DeviceChoice::cuda;
    StepMemory const gpu = step_cost(options, 1).memory;
    EXPECT_EQ(2 * gpu.weights, cpu.weights);
    EXPECT_EQ(gpu.gradients, cpu.gradients);
    EXPECT_EQ(2 * gpu.optimizer, 3 * cpu.optimizer);
    EXPECT_LT(gpu.activations, 0.7 * static_cast<double>(cpu.activations));
}

/// What the check says against these options, or nothing.
std::string refusal_of(RunOptions const& options) {
    try {
        step_cost(options, 1);
        return "";
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::config);
        return e.what();
    }
}

TEST(Check, RefusesHeadSizesThatAGpuCannotAttend) {
    RunOptions options = tiny();
    options.device = DeviceChoice::cuda;
    options.attention.kind = AttentionKind::full;
    auto const refused = [&](int64_t head_dim) {
        options.model.head_dim = head_dim;
        std::string const refusal = refusal_of(options);
        if (refusal.empty()) return false;
        bool const is_for_cudnn = options.deterministic && build_uses_cudnn() && head_dim % 8 == 0;
        EXPECT_THAT(refusal, AllOf(HasSubstr(std::to_string(head_dim)),
                                   HasSubstr(head_dim > 256 ? "the GPU rotates even sizes up to 256"
                                             : is_for_cudnn ? "with `deterministic: true`"
                                                            : "is not 32, 64, 96 or 128")));
        return true;
    };
    for (int64_t const own : {32, 64, 96, 128}) EXPECT_FALSE(refused(own)) << own;
    for (int64_t const cudnn : {8, 80, 256}) EXPECT_EQ(refused(cudnn), !build_uses_cudnn()) << cudnn;
    for (int64_t const none : {20, 60, 264}) EXPECT_TRUE(refused(none)) << none;
    // Where only the own kernels serve: MoBA, full attention's deterministic backward.
    options.deterministic = true;
    for (int64_t const none : {20, 80}) EXPECT_TRUE(refused(none)) << none;
    EXPECT_FALSE(refused(64));
    options.deterministic = false;
    options.attention.kind = AttentionKind::moba;
    for (int64_t const none : {20, 80}) EXPECT_TRUE(refused(none)) << none;
    options.device = DeviceChoice::cpu;
    for (int64_t const any : {20, 80}) EXPECT_FALSE(refused(any)) << any;
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

TEST(Check, PrintsInWhatProductsRun) {
    RunOptions options = tiny();
    EXPECT_THAT(report(options, 2), ::testing::Not(HasSubstr("in FP8")));
    options.model.hidden_size = 256;
    options.model.intermediate_size = 320;  // 128 divides the outputs of gate_up, not the inputs of down
    options.model.head_dim = 64;
    options.precision.linear = LinearPrecision::fp8_block;
    options.precision.bf16_layers.first = 1;
    std::string const text = report(options, 2);
    EXPECT_THAT(text, HasSubstr("products of the blocks in training, 2 of 3 layers in FP8\n"));
    auto const line = [](char const* name, char const* shape, char const* forward, char const* dgrad,
                         char const* wgrad) {
        return fmt::format("#   {:<10} {:>24} {:>9} {:>9} {:>9}\n", name, shape, forward, dgrad, wgrad);
    };
    EXPECT_THAT(text, HasSubstr(line("qkv", "128 x 512 x 256", "fp8", "fp8", "fp8")));
    EXPECT_THAT(text, HasSubstr(line("gate_up", "128 x 640 x 256", "fp8", "fp8", "fp8")));
    EXPECT_THAT(text, HasSubstr(line("down", "128 x 256 x 320", "fp32", "fp32", "fp32")));
    double const fp8 = 2 * (512 + 256 + 640) * 256, all = 3 * (512 + 256 + 640 + 320) * 256 + 320 * 256;
    EXPECT_THAT(text, HasSubstr(fmt::format("{:.1f}% of the FLOPs of all products", 100 * fp8 / all)));
    RunOptions chunks = options;
    chunks.train.mlp_chunk = 128;
    chunks.train.micro_batch_size *= 2, chunks.train.global_batch_size *= 2;
    std::string const chunked = report(chunks, 2);
    EXPECT_THAT(chunked, HasSubstr(line("gate_up", "128 x 640 x 256", "fp8", "fp8", "fp8")));
    EXPECT_THAT(chunked, HasSubstr(fmt::format("{:.1f}% of the FLOPs of all products", 100 * fp8 / all)));
    options.precision.wgrad = GradientPrecision::bf16;
    EXPECT_THAT(report(options, 2), HasSubstr(line("o", "128 x 256 x 256", "fp8", "fp8", "fp32")));
    options.precision.linear = LinearPrecision::automatic;
    EXPECT_THAT(report(options, 2), HasSubstr(line("o", "128 x 256 x 256", "fp32", "fp32", "fp32")));
}

/// The formulae of docs/parallelism.md, for these options.
TEST(StepCost, OfMessagesIsWhatTheDocumentationSays) {
    RunOptions options = tiny();
    options.model.num_attention_heads = 8;
    options.model.num_key_value_heads = 4;
    options.model.head_dim = 6;
    options.parallel = {.tensor = 2, .context = 2, .context_mode = ContextMode::ulysses};
    constexpr int tp = 2, cp = 2, dp = 2, e = 4;
    constexpr int64_t D = 48, K = 6, H = 8 / tp, G = 4 / tp, L = 3, A = 2, T = 2 * 64 / cp, R = dp * cp;
    int64_t const P = ParamLayout(llama_params(options.model), tp, 0, unit_multiple(R)).size();
    using enum Collective;
    auto const bytes = [](Traffic const& sent, char const* axis, Collective collective, char const* content) {
        auto const found = sent.find({axis, collective, content});
        return found == sent.end() ? 0 : std::llround(found->second.bytes);
    };
    Traffic sent = step_cost(options, tp * cp * dp).sent;
    EXPECT_EQ(bytes(sent, "tensor", all_gather, "activations"), A * (6 * L + 2) * e * T * D * (tp - 1) / tp);
    EXPECT_EQ(bytes(sent, "tensor", reduce_scatter, "activations"), A * (4 * L + 2) * e * T * D * (tp - 1) / tp);
    EXPECT_EQ(bytes(sent, "tensor", all_reduce, "activations"), A * 2 * 3 * 4 * T * (tp - 1) / tp);
    EXPECT_EQ(bytes(sent, "tensor", all_reduce, "gradients"), 2 * e * (2 * L + 1) * D * (tp - 1) / tp);
    EXPECT_EQ(bytes(sent, "context", all_to_all, "activations"),
              A * L * 2 * e * T * (2 * H + 2 * G) * K * (cp - 1) / cp);
    EXPECT_EQ(bytes(sent, "data x context", reduce_scatter, "gradients"), e * P * (R - 1) / R);
    EXPECT_EQ(bytes(sent, "data x context", all_gather, "weights"), e * P * (R - 1) / R);

    options.parallel.shard = ShardStage::weights;
    sent = step_cost(options, tp * cp * dp).sent;
    int64_t const block = ParamLayout(llama_params(options.model), tp, 0, unit_multiple(R)).unit(1).size();
    EXPECT_EQ(bytes(sent, "data x context", reduce_scatter, "gradients"), A * e * P * (R - 1) / R);
    EXPECT_EQ(bytes(sent, "data x context", all_gather, "weights"),
              e * (P - L * block + (2 * A * (L - 2) + 2) * block) * (R - 1) / R);

    options.parallel.context_mode = ContextMode::allgather;
    options.parallel.shard = ShardStage::none;
    sent = step_cost(options, tp * cp * dp).sent;
    EXPECT_EQ(bytes(sent, "context", all_gather, "activations"), A * L * 4 * e * T * G * K * (cp - 1));
    EXPECT_EQ(bytes(sent, "context", reduce_scatter, "activations"), A * L * 2 * e * T * G * K * (cp - 1));
    EXPECT_EQ(bytes(sent, "data x context", all_reduce, "gradients"), 2 * e * P * (R - 1) / R);
    EXPECT_EQ(bytes(sent, "data x context", all_gather, "weights"), 0);
}

/// The same where the backward computes layers again.
TEST(StepCost, OfMessagesWithRecomputationIsWhatTheDocumentationSays) {
    RunOptions options = tiny();
    options.model.num_attention_heads = 8;
    options.model.num_key_value_heads = 4;
    options.model.head_dim = 6;
    constexpr int n = 2, e = 4;
    constexpr int64_t D = 48, K = 6, H = 8, G = 4, L = 3, A = 4, T = 2 * 64;
    using enum Collective;
    auto const bytes = [&](char const* axis, Collective collective) {
        Traffic const sent = step_cost(options, n).sent;
        auto const found = sent.find({axis, collective, "activations"});
        return found == sent.end() ? 0 : std::llround(found->second.bytes);
    };
    for (auto const& [recompute, gathers, scatters, exchanges] : {std::tuple{"none", 6, 4, 2},
                                                                  {"elementwise", 6, 4, 2},
                                                                  {"mlp", 7, 4, 2},
                                                                  {"attention", 8, 5, 3},
                                                                  {"block", 8, 5, 3}}) {
        SCOPED_TRACE(recompute);
        options.train.recompute = recompute;
        options.parallel = {.tensor = n, .data = 1};
        EXPECT_EQ(bytes("tensor", all_gather), A * (gathers * L + 2) * e * T * D * (n - 1) / n);
        EXPECT_EQ(bytes("tensor", reduce_scatter), A * (scatters * L + 2) * e * T * D * (n - 1) / n);
        options.parallel = {.context = n, .data = 1, .context_mode = ContextMode::ulysses};
        EXPECT_EQ(bytes("context", all_to_all), A * L * exchanges * e * T / n * (2 * H + 2 * G) * K * (n - 1) / n);
        options.parallel.context_mode = ContextMode::allgather;
        EXPECT_EQ(bytes("context", all_gather), A * L * 4 * e * T / n * G * K * (n - 1));
        EXPECT_EQ(bytes("context", reduce_scatter), A * L * 2 * e * T / n * G * K * (n - 1));
    }
}

TEST(ShardAuto, IsTheFirstStageWhoseStepFits) {
    RunOptions options = tiny();
    auto const bytes = [&](ShardStage stage) {
        RunOptions with = options;
        with.parallel.shard = stage;
        return step_cost(with, 8).memory.sum();
    };
    options.train.global_batch_size = 16;
    int64_t const optimizer = bytes(ShardStage::optimizer), gradients = bytes(ShardStage::gradients),
                  weights = bytes(ShardStage::weights);
    ASSERT_LT(gradients, optimizer);
    ASSERT_LT(weights, gradients);
    auto const decided = [&](int64_t there) { return first_stage_that_fits(options, 8, there); };
    EXPECT_EQ(decided(optimizer), ShardStage::optimizer);
    EXPECT_EQ(decided(optimizer - 1), ShardStage::gradients);
    EXPECT_EQ(decided(gradients - 1), ShardStage::weights);
    EXPECT_EQ(decided(1), ShardStage::weights);
    EXPECT_EQ(decided(0), ShardStage::optimizer) << "where nothing is known";
    EXPECT_EQ(first_stage_that_fits(options, 1, 1), ShardStage::none);
    options.parallel.shard = ShardStage::gradients;
    testing::run_ranks(2, [&](HostComm& world) {
        EXPECT_EQ(with_stage_decided(options, world, 2).parallel.shard, ShardStage::gradients);
    });
}

TEST(RecomputeAuto, IsTheCheapestSetThatFits) {
    RunOptions options = tiny();
    options.model.hidden_size = 64;
    options.model.intermediate_size = 192;
    options.model.num_hidden_layers = 6;
    options.attention.full_layers.last = 2;
    options.data.sequence_length = 1024;
    auto const bytes = [&](std::string const& recompute) {
        RunOptions with = options;
        with.train.recompute = recompute;
        return step_cost(with, 1).memory.sum();
    };
    auto const decided = [&](int64_t there) { return to_string(recompute_that_fits(options, 1, there)); };
    // Each list takes less than the one before: what fits is the first that does, and one byte less takes the next.
    std::vector<std::string> const lists = {"none",
                                            "elementwise*2, none*4",
                                            "elementwise*5, none*1",
                                            "elementwise",
                                            "mlp*3, elementwise*3",
                                            "mlp",
                                            "attention*4, mlp*2",
                                            "attention",
                                            "block*3, attention*3",
                                            "block*4, attention*2",
                                            "block"};
    for (size_t i = 1; i < lists.size(); ++i) ASSERT_LT(bytes(lists[i]), bytes(lists[i - 1])) << lists[i];
    for (std::string const& list : lists) EXPECT_EQ(decided(bytes(list)), list);
    EXPECT_EQ(decided(bytes("mlp") - 1), "attention*2, mlp*4") << "the shared memory of a level comes with its first";
    EXPECT_EQ(decided(bytes("block*4, attention*2") - 1), "block*5, attention*1");
    EXPECT_EQ(decided(1), "block") << "where nothing fits";
    EXPECT_EQ(decided(0), "none") << "where nothing is known";

    options.attention.full_layers = {.layers = {0, 3}};
    EXPECT_EQ(decided(bytes("attention, block*2, attention, block*2")), "attention*1, block*2, attention*1, block*2")
        << "block-sparse layers first";
    testing::run_ranks(2, [&](HostComm& world) {
        RunOptions with = options;
        with.train.recompute = "mlp";
        EXPECT_EQ(with_memory_policy_decided(with, world, 2).train.recompute, "mlp") << "a choice stays";
        with.train.recompute = kRecomputeAuto;
        EXPECT_EQ(with_memory_policy_decided(with, world, 2).train.recompute, "none");
        int const sharers = world.rank() == 0 ? 1 : 1 << 20;
        EXPECT_EQ(with_memory_policy_decided(with, world, sharers).train.recompute, "block")
            << "rank 1 has next to no memory";
    });
}

TEST(RecomputeAuto, IsDecidedForCheckByThisMachine) {
    RunOptions options = tiny();
    options.parallel.shard = ShardStage::gradients;
    EXPECT_FALSE(asks_for_memory(options, 2)) << "nothing to decide: a GPU that is busy stays alone";
    options.parallel.shard = ShardStage::automatic;
    EXPECT_TRUE(asks_for_memory(options, 2));
    EXPECT_FALSE(asks_for_memory(options, 1)) << "nobody to share with";
    options.train.recompute = kRecomputeAuto;
    EXPECT_THAT(report(options, 2), HasSubstr("# train.recompute auto: none, for a step in "));
    EXPECT_THAT(report(options, 2), HasSubstr("recompute: auto\n"));
}

TEST(OffloadAuto, IsTheFewestLayersThatFit) {
    RunOptions options = tiny();
    options.device = DeviceChoice::cuda;
    options.model.head_dim = 32;
    options.model.num_hidden_layers = 7;
    options.data.sequence_length = 2048;
    options.train.offload = kOffloadAuto;
    auto const memory = [&](int64_t layers) {
        RunOptions with = options;
        with.train.offload = layers;
        return step_cost(with, 1).memory;
    };
    for (int64_t layers = 1; layers <= 5; ++layers) {
        EXPECT_LT(memory(layers).sum(), memory(layers - 1).sum());
        EXPECT_GT(memory(layers).host, memory(layers - 1).host);
        EXPECT_EQ(offload_that_fits(options, 1, memory(layers).sum()), layers);
        EXPECT_EQ(offload_that_fits(options, 1, memory(layers - 1).sum() - 1), layers);
    }
    EXPECT_EQ(offload_that_fits(options, 1, memory(0).sum()), 0);
    EXPECT_EQ(offload_that_fits(options, 1, 1), 5) << "where nothing fits";
    EXPECT_EQ(offload_that_fits(options, 1, 0), 0) << "where nothing is known";
    EXPECT_EQ(memory(0).host, 0);
    options.train.offload = 4;
    options.parallel.data = -1;
    EXPECT_THAT(report(options, 4), HasSubstr("pinned; a host of 4 ranks takes "));
    options.device = DeviceChoice::cpu;
    options.train.offload = kOffloadAuto;
    EXPECT_EQ(offload_that_fits(options, 1, 1), 0) << "the host frees nothing by holding it itself";
}

TEST(StepCost, CountsTheCopyThatACheckpointIsWrittenFrom) {
    RunOptions options = tiny();
    ParamLayout const layout(llama_params(options.model), 1, 0);
    EXPECT_EQ(step_cost(options, 1).memory.save, 12 * layout.size()) << "weights and two moments in fp32";
    EXPECT_THAT(report(options, 1), HasSubstr("the copy that a checkpoint is written from"));
    int64_t const of_two = step_cost(options, 2).memory.save;
    EXPECT_GE(2 * of_two, 12 * layout.size());
    EXPECT_LT(2 * of_two, 13 * layout.size());
}

TEST(StepCost, TakesCudnnsScratchWhereAGpuHasNoKernelsForHopper) {
    if (!build_uses_cudnn()) GTEST_SKIP() << "this build leaves nothing to cuDNN";
    RunOptions options = tiny();
    options.device = DeviceChoice::cuda;
    options.attention.kind = AttentionKind::full;
    options.model.head_dim = 64;
    options.data.sequence_length = 32768;
    auto const files = make_file_system();
    DeviceRates const a100 = device_rates("a100", *files), h100 = device_rates("h100", *files);
    int64_t const rows = 2 * 32768 * 4;
    EXPECT_EQ(step_cost(options, 1, &a100).memory.scratch, rows * (64 * 8 + 8));
    EXPECT_LT(step_cost(options, 1, &h100).memory.scratch, rows * (64 * 8 + 8));
}

TEST(OptimizerOffload, TakesTheHostsMemoryForMoments) {
    RunOptions options = tiny();
    options.device = DeviceChoice::cuda;
    options.model.head_dim = 32;
    options.model.num_hidden_layers = 12;
    StepMemory const kept = step_cost(options, 1).memory;
    options.optimizer.offload = true;
    StepMemory const offloaded = step_cost(options, 1).memory;
    ParamLayout const layout(llama_params(options.model), 1, 0);
    EXPECT_EQ(kept.host, 0);
    EXPECT_EQ(offloaded.host, 8 * layout.size());
    int64_t largest = 0;
    for (int unit = 0; unit < layout.units(); ++unit) largest = std::max(largest, layout.unit(unit).size());
    EXPECT_EQ(offloaded.optimizer, kept.optimizer - 8 * layout.size() + 16 * largest) << "slots of two units";
    EXPECT_THAT(report(options, 1), HasSubstr("of moments under offload, pinned; a host of 1 rank takes "));
}

TEST(MemoryPolicy, RefusesChunksThatAreTooManyToPlan) {
    RunOptions options = tiny();
    options.data.mock_data = true;
    options.data.sequence_length = 1 << 20;
    options.model.max_position_embeddings = 1 << 20;
    options.train.micro_batch_size = 1;
    options.train.mlp_chunk = 48;
    auto const found = problems(options, 1);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_THAT(found[0], HasSubstr("train.mlp_chunk (48) cuts the 1048576 tokens"));
    EXPECT_THAT(found[0], HasSubstr("at least 49"));
    options.train.mlp_chunk = 49;
    EXPECT_THAT(problems(options, 1), ::testing::IsEmpty());
}

/// The numbers of the first line that begins with these words, after them.
std::string figures(std::string const& text, std::string const& begin) {
    auto const at = text.find(fmt::format("\n#   {} ", begin));
    if (at == std::string::npos) return "no line: " + begin;
    std::string line = text.substr(at + 5 + begin.size(), text.find('\n', at + 1) - at - 5 - begin.size());
    line.erase(0, line.find_first_not_of(' '));
    return line;
}

TEST(Check, PrintsWhatAStepTakesAndSends) {
    RunOptions options = tiny();
    options.parallel.tensor = 2;
    std::string const text = report(options, 4);
    // Half of the embedding and the classifier and of every matrix, and all norms.
    int64_t const tensors = (86352 - 7 * 48) / 2 + 7 * 48, units = 5, unused = 128 - 1;
    int64_t const own = ParamLayout(llama_params(options.model), 2, 0, unit_multiple(2)).size();
    EXPECT_LE(own, tensors + units * unused);
    EXPECT_EQ(figures(text, "weights"), format_bytes(4 * own));
    EXPECT_THAT(figures(text, "optimizer"), HasSubstr(format_bytes(4 * own)));
    for (char const* name : {"gradients", "activations", "logits", "communication", "peak"})
        EXPECT_THAT(figures(text, name), ::testing::Not(HasSubstr("no line"))) << name;
    // Accumulation of 2: the gradients of the norms travel once, those of matrices are shared by two ranks.
    EXPECT_EQ(figures(text, "tensor          all_reduce      gradients  "), "7    1.31KiB");
    EXPECT_THAT(figures(text, "data x context  reduce_scatter  gradients  "), HasSubstr(format_bytes(2 * own)));
    EXPECT_THAT(figures(text, "data x context  all_gather      weights    "), HasSubstr(format_bytes(2 * own)));
    // A gather sends half of [64 x 2, 48] stream elements of 4 bytes. 3 layers with 2 forward and 4 backward, one
    // before the classifier, one for the embedding.
    EXPECT_THAT(figures(text, "tensor          all_gather      activations"),
                ::testing::MatchesRegex("40 +" + format_bytes(40 * 64 * 48 * 4)));
}

TEST(Check, SaysThatAModelCannotBeExported) {
    RunOptions options = tiny();
    auto const said = [&] {
        ::testing::internal::CaptureStdout();
        print_check(options, 1);
        return ::testing::internal::GetCapturedStdout();
    };
    EXPECT_THAT(said(), ::testing::Not(HasSubstr("exported")));
    options.model.qkv_bias = options.model.qk_norm = true;
    EXPECT_THAT(said(),
                HasSubstr("# warning: this model cannot be exported to a Hugging Face folder: no architecture"));
}

}  // namespace
}  // namespace perigee
