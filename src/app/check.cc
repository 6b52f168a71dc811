#include "app/check.h"

#include <fmt/format.h>

#include <array>

#include "app/dry_run.h"
#include "config/config.h"
#include "model/llama.h"
#include "train/progress.h"

namespace perigee {
namespace {

void print_layout(RunOptions const& options, MeshShape const& mesh) {
    TrainOptions const& train = options.train;
    int64_t const accumulation = train.global_batch_size / (train.micro_batch_size * mesh.dp);
    fmt::print("#\n# layout\n");
    fmt::print("#   {} rank{} = data {} x context {} x tensor {}\n", mesh.world(), mesh.world() == 1 ? "" : "s",
               mesh.dp, mesh.cp, mesh.tp);
    fmt::print("#   global batch of {} samples = data {} x accumulation {} x micro-batch {}\n", train.global_batch_size,
               mesh.dp, accumulation, train.micro_batch_size);
    int64_t const tokens = train.global_batch_size * options.data.sequence_length;
    fmt::print("#   {} tokens per step, {:.4g} in the run\n", format_count(tokens),
               static_cast<double>(tokens) * static_cast<double>(train.steps));
}

void print_memory(RunOptions const& options, int world_size, int64_t parameters) {
    StepMemory const step = step_memory(options, world_size);
    int64_t const weights = parameters * size_of(DType::f32);
    MeshShape const mesh = resolve_mesh(options.parallel, world_size);
    int64_t const owners = options.parallel.zero ? mesh.dp * mesh.cp : 1;
    int64_t const moments = 2 * weights / owners;
    fmt::print("#\n# memory per rank (fp32 on the CPU), without data and the libraries' own\n");
    auto const line = [](char const* name, int64_t bytes, char const* what) {
        fmt::print("#   {:<12} {:>10}{}\n", name, format_bytes(bytes), what);
    };
    line("weights", weights, "");
    line("gradients", weights, "");
    line("optimizer", moments, owners > 1 ? "  this rank's share of two moments" : "  two moments");
    line("activations", step.activations - step.logits, "  one micro-batch, forward and backward");
    line("logits", step.logits, "  one chunk of tokens");
    line("sum", 2 * weights + moments + step.activations, "");
}

void print_flops(RunOptions const& options) {
    auto const length = static_cast<int32_t>(options.data.sequence_length);
    std::array<int32_t, 2> const document = {0, length};
    auto const kinds = layer_kinds(options.attention, options.model.num_hidden_layers, 0);
    ForwardFlops const flops = forward_flops(options.model, options.attention.moba, kinds, document);
    fmt::print("#\n# FLOPs per token (documents of {} tokens, attention as in the first step)\n", length);
    fmt::print("#   {:<12} {:>10} {:>10}\n", "", "forward", "training");
    auto const line = [length](char const* name, double forward, double training) {
        fmt::print("#   {:<12} {:>10.4g} {:>10.4g}\n", name, forward / length, training / length);
    };
    line("linear", flops.linear, 3 * flops.linear);
    line("attention", flops.attention, 3 * flops.attention);
    line("gate", flops.gate, flops.gate);
    line("sum", flops.linear + flops.attention + flops.gate, flops.training());
}

}  // namespace

void print_check(RunOptions const& options, int world_size) {
    MeshShape const mesh = resolve_mesh(options.parallel, world_size);
    ParamLayout const layout(llama_params(options.model), mesh.tp, 0);
    fmt::print("{}", to_yaml(options));
    print_layout(options, mesh);
    fmt::print("#\n# parameters: {}\n", format_count(layout.global_size()));
    print_memory(options, world_size, layout.size());
    print_flops(options);
}

}  // namespace perigee
