#include "app/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "app/dry_run.h"
#include "app/fit.h"
#include "app/plan.h"
#include "base/error.h"
#include "base/log.h"
#include "config/config.h"
#include "hf/config.h"
#include "model/llama.h"
#include "train/progress.h"
#include "train/session.h"

namespace perigee {
namespace {

constexpr int kRanksOfAHost = 8;  // at most, for sums over a host

void print_layout(RunOptions const& options, MeshShape const& mesh) {
    TrainOptions const& train = options.train;
    int64_t const accumulation = train.global_batch_size / (train.micro_batch_size * mesh.dp);
    fmt::print("# layout\n");
    fmt::print("#   {} rank{} = data {} x context {} x tensor {}\n", mesh.world(), mesh.world() == 1 ? "" : "s",
               mesh.dp, mesh.cp, mesh.tp);
    fmt::print("#   global batch of {} samples = data {} x accumulation {} x micro-batch {}\n", train.global_batch_size,
               mesh.dp, accumulation, train.micro_batch_size);
    int64_t const tokens = train.global_batch_size * options.data.sequence_length;
    fmt::print("#   {} tokens per step, {:.4g} in the run\n", format_count(tokens),
               static_cast<double>(tokens) * static_cast<double>(train.steps));
}

void print_parameters(RunOptions const& options, MeshShape const& mesh) {
    ParamSplit const parts = split(params_of(options));
    auto const size = [&](std::vector<ParamSpec> const& specs) {
        return ParamLayout(specs, mesh.tp, 0, 1, unit_count(options.model)).global_size();
    };
    int64_t const trained = size(parts.trained), frozen = size(parts.frozen);
    fmt::print("#\n# parameters: {}{}\n", format_count(trained + frozen),
               frozen == 0 ? "" : fmt::format(", {} of them trained", format_count(trained)));
}

void print_memory(RunOptions const& options, MeshShape const& mesh, StepMemory const& memory) {
    bool const gpu = takes_gpu(options.device);
    fmt::print("#\n# memory per rank ({}), without data{}\n", gpu ? "bf16 on a GPU, sums in fp32" : "fp32 on the CPU",
               gpu ? " and what NCCL takes" : "");
    auto const line = [](char const* name, int64_t bytes, std::string const& what) {
        fmt::print("#   {:<14} {:>10}{}\n", name, format_bytes(bytes), what);
    };
    bool const shared = options.parallel.shard != ShardStage::none && mesh.dp * mesh.cp > 1;
    line("weights", memory.weights, "");
    line("gradients", memory.gradients, "");
    line("optimizer", memory.optimizer,
         fmt::format("  {}two moments{}{}", shared ? "this rank's share of " : "",
                     options.optimizer.offload ? " of two units" : "", gpu ? " and fp32 weights" : ""));
    line("activations", memory.activations, "  one micro-batch, forward and backward");
    line("logits", memory.logits, "  one chunk of tokens");
    line("communication", memory.buckets + memory.gathered + memory.messages, "  what is sent from and received into");
    if (gpu) line("scratch", memory.scratch, "  of attention; for MoBA see train.moba_scratch_mib");
    if (memory.context > 0) line("context", memory.context, "  of CUDA, and its libraries' kernels");
    line("peak", memory.in_use(), "  of all: not every class is at its largest at once");
    if (memory.save > 0) line("save", memory.save, "  of the host: the copy that a checkpoint is written from");
    if (memory.host == 0) return;
    int const ranks = std::min(mesh.world(), kRanksOfAHost);
    line("host", memory.host,
         fmt::format("  of {} under {}{}; a host of {} rank{} takes {}",
                     !options.optimizer.offload   ? "activations"
                     : options.train.offload == 0 ? "moments"
                                                  : "activations and moments",
                     options.optimizer.offload ? "offload" : "train.offload", gpu ? ", pinned" : "", ranks,
                     ranks == 1 ? "" : "s", format_bytes(ranks * memory.host)));
}

void print_traffic(Traffic const& traffic) {
    fmt::print("#\n# sent per step by each rank, as over a ring, what stays on the rank left out\n");
    fmt::print("#   {:<15} {:<15} {:<12} {:>8} {:>10}\n", "axis", "collective", "of", "calls", "bytes");
    Sent sum;
    for (auto const& [kind, sent] : traffic) {
        fmt::print("#   {:<15} {:<15} {:<12} {:>8} {:>10}\n", kind.axis, to_string(kind.collective), kind.content,
                   sent.calls, format_bytes(std::llround(sent.bytes)));
        sum.calls += sent.calls;
        sum.bytes += sent.bytes;
    }
    fmt::print("#   {:<44} {:>8} {:>10}\n", "sum", sum.calls, format_bytes(std::llround(sum.bytes)));
}

void print_flops(RunOptions const& options, MeshShape const& mesh) {
    auto const length = static_cast<int32_t>(options.data.sequence_length);
    std::array<int32_t, 2> const document = {0, length};
    auto const selections = layer_selections(options.attention, options.model.num_hidden_layers, 0, 0);
    ForwardFlops const flops =
        forward_flops(options.model, selections, document, untrained(params_of(options), options.model));
    double const samples = static_cast<double>(options.train.global_batch_size) / mesh.world();
    fmt::print("#\n# FLOPs (documents of {} tokens, attention as in the first step; step/rank is the mean)\n", length);
    fmt::print("#   {:<12} {:>13} {:>14} {:>10}\n", "", "forward/token", "training/token", "step/rank");
    auto const line = [length, samples](char const* name, double forward, double training) {
        fmt::print("#   {:<12} {:>13.4g} {:>14.4g} {:>10.4g}\n", name, forward / length, training / length,
                   training * samples);
    };
    line("linear", flops.linear, flops.training_linear());
    line("attention", flops.attention, flops.training_attention());
    line("gate", flops.gate, flops.gate);
    line("sum", flops.linear + flops.attention + flops.gate, flops.training());
}

/// Precision of each product of the blocks in training, unless all are bf16.
void print_precision(RunOptions const& options, MeshShape const& mesh) {
    PrecisionOptions const& precision = options.precision;
    if (precision.linear == LinearPrecision::bf16) return;
    ModelOptions const& model = options.model;
    char const* const plain = takes_gpu(options.device) ? "bf16" : "fp32";
    auto const [tokens, chunk] = tokens_of_rank(options, mesh);
    int64_t layers = 0;
    for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer)
        layers += in_fp8_layers(precision, layer, model.num_hidden_layers);
    fmt::print("#\n# products of the blocks in training, {} of {} layers in FP8\n", layers, model.num_hidden_layers);
    fmt::print("#   {:<10} {:>24} {:>9} {:>9} {:>9}\n", "", "tokens x out x in", "forward", "dgrad", "wgrad");
    for (auto const& [name, shape] : block_linears(model, tokens, chunk, mesh.tp)) {
        auto const [t, o, i] = shape;
        bool const quantised = takes_fp8(precision, shape);
        bool const wgrad = quantised && precision.wgrad == GradientPrecision::fp8;
        auto const in = [plain](bool yes) { return yes ? "fp8" : plain; };
        fmt::print("#   {:<10} {:>24} {:>9} {:>9} {:>9}\n", name, fmt::format("{} x {} x {}", t, o, i), in(quantised),
                   in(quantised), in(wgrad));
    }
    fmt::print("#   {:.1f}% of the FLOPs of all products, the classifier's included, in FP8\n",
               100 * fp8_share(precision, model, tokens, chunk, mesh.tp));
}

/// What MoBA attends, from the first step that is under it.
void print_attention(RunOptions const& options) {
    auto const step = next_moba_step(options.attention, 0);
    if (!step) return;
    std::array<int32_t, 2> const document = {0, static_cast<int32_t>(options.data.sequence_length)};
    ForwardFlops const flops = forward_flops(
        options.model, layer_selections(options.attention, options.model.num_hidden_layers, *step, 0), document);
    if (flops.causal_pairs > 0)
        fmt::print("#   MoBA attends {:.1f}% of the causal keys{}\n", 100 * flops.sparse_pairs / flops.causal_pairs,
                   *step > 0 ? fmt::format(", from step {} on", *step + 1) : "");
    if (auto const warning = full_attention_warning(options.attention, flops.sparse_pairs, flops.causal_pairs))
        fmt::print("#   warning: {}\n", *warning);
}

/// What has the memory for a step: a GPU of these rates, or this machine where it has the device; else 0, unknown. A
/// GPU that may be busy is left alone where nothing depends on it.
int64_t memory_there(RunOptions const& options, int world_size, int local_ranks, DeviceRates const* rates) {
    if (!asks_for_memory(options, world_size)) return 0;
    if (rates != nullptr) return bytes_for_a_step(*rates);
    try {
        bool const here = !takes_gpu(options.device) || cuda_device_count() > 0;
        return here ? memory_for_a_step(options, local_ranks).bytes : 0;
    } catch (Error const& e) {
        log::warn("the memory of this machine's device is not known: {}", e.what());
        return 0;
    }
}

/// As a job with this memory would decide; `bytes` is 0 where it is not known.
RunOptions decided(RunOptions options, int world_size, int64_t bytes) {
    if (options.parallel.shard == ShardStage::automatic) {
        options.parallel.shard = first_stage_that_fits(options, world_size, bytes);
        if (options.parallel.shard > ShardStage::optimizer)
            fmt::print("#\n# parallel.shard auto: {}\n", to_string(options.parallel.shard));
    }
    std::string const why = decided_for(bytes);
    if (options.train.recompute == kRecomputeAuto) {
        options.train.recompute = to_string(recompute_that_fits(options, world_size, bytes));
        fmt::print("#\n# train.recompute auto: {}, {}\n", options.train.recompute, why);
    }
    if (options.train.offload == kOffloadAuto) {
        options.train.offload = offload_that_fits(options, world_size, bytes);
        fmt::print("#\n# train.offload auto: {}, {}\n", options.train.offload, why);
    }
    return options;
}

}  // namespace

void print_check(RunOptions const& options, int world_size, int local_ranks, DeviceRates const* rates) {
    MeshShape const mesh = resolve_mesh(options.parallel, world_size);
    print_layout(options, mesh);
    print_parameters(options, mesh);
    if (std::string const problem = export_problem(options.model, options.attention); !problem.empty())
        fmt::print("# warning: this model cannot be exported to a Hugging Face folder: {}\n", problem);
    RunOptions const planned = decided(options, world_size, memory_there(options, world_size, local_ranks, rates));
    StepCost const cost = step_cost(planned, world_size, rates);
    print_memory(planned, mesh, cost.memory);
    print_flops(options, mesh);
    print_attention(options);
    print_precision(options, mesh);
    print_traffic(cost.sent);
    if (rates != nullptr) fmt::print("{}", time_report(options, world_size, cost, *rates));
    fmt::print("#\n# the whole configuration\n{}", to_yaml(options));
}

}  // namespace perigee
