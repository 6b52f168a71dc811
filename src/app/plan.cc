#include "app/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

#include "app/fit.h"
#include "base/error.h"
#include "config/config.h"
#include "train/progress.h"

namespace perigee {

namespace {

char const* to_string(RateSource source) { return source == RateSource::measured ? "measured" : "assumed"; }

/// Measured where all are.
RateSource of_all(std::initializer_list<DeviceRate> rates) {
    bool const all = std::ranges::all_of(rates, [](auto const& r) { return r.source == RateSource::measured; });
    return all ? RateSource::measured : RateSource::assumed;
}

RateSource of_attention(DeviceRates const& r, RunOptions const& options) {
    RateSource const full =
        of_all({r.full_forward_1k, r.full_backward_1k, r.full_forward_8k, r.full_forward_32k, r.full_forward_128k,
                r.full_backward_8k, r.full_backward_32k, r.full_backward_128k});
    RateSource const moba =
        of_all({r.moba_forward, r.moba_backward, r.moba_gathered_backward, r.moba_choice, r.memory});
    RateSource const heads = options.model.head_size() <= 64 ? of_all({r.small_heads_forward, r.small_heads_backward})
                                                             : RateSource::measured;
    bool const is_full = options.attention.kind == AttentionKind::full;
    return of_all({{0, full}, {0, heads}, {0, is_full ? RateSource::measured : moba}});
}

int64_t tokens_of(RunOptions const& options) { return options.train.global_batch_size * options.data.sequence_length; }

double rate_of(RunOptions const& options, int world_size, StepTime const& time) {
    return static_cast<double>(tokens_of(options)) / time.step / world_size;
}

std::vector<int64_t> divisors(int64_t n) {
    std::vector<int64_t> all;
    for (int64_t i = 1; i <= n; ++i)
        if (n % i == 0) all.push_back(i);
    return all;
}

/// With the cheapest recomputation that fits, if any does; under `train.offload: auto` with as many layers offloaded as
/// that needs, none where it fits without.
std::optional<Layout> fitted(RunOptions options, int world_size, DeviceRates const& rates) {
    int64_t const bytes = bytes_for_a_step(rates);
    auto const fits = [&] { return step_cost(options, world_size).memory.sum() <= bytes; };
    bool const offloads = options.train.offload == kOffloadAuto;
    if (offloads) options.train.offload = 0;
    options.train.recompute = "block";
    if (fits()) {
        options.train.recompute = perigee::to_string(recompute_that_fits(options, world_size, bytes));
    } else {
        if (offloads) options.train.offload = offload_that_fits(options, world_size, bytes);
        if (!offloads || !fits()) return std::nullopt;
    }
    StepCost cost = step_cost(options, world_size, &rates);
    if (cost.memory.sum() > bytes) return std::nullopt;  // above, no rates told that this GPU is no Hopper
    return Layout{std::move(options), std::move(cost)};
}

/// Every layout that the model and the batch allow, tensor-parallel ranks within a host, without a choice of
/// recomputation.
std::vector<RunOptions> possible_layouts(RunOptions options, int world_size, int64_t gpus_per_host) {
    std::vector<RunOptions> all;
    for (int64_t const tensor : divisors(world_size)) {
        if (tensor > gpus_per_host) break;
        for (int64_t const context : divisors(world_size / tensor)) {
            options.parallel.tensor = tensor, options.parallel.context = context;
            options.parallel.data = world_size / tensor / context;
            bool const shares = options.parallel.data * context > 1;
            for (ShardStage const stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::weights}) {
                options.parallel.shard = shares ? stage : ShardStage::none;
                if (problems(options, world_size).empty()) all.push_back(options);
                if (!shares) break;
            }
        }
    }
    return all;
}

/// No layout is possible: says why the simplest one, whose ranks are all data-parallel, is not.
[[noreturn]] void refuse_world(RunOptions options, int world_size) {
    options.parallel.tensor = options.parallel.context = 1;
    options.parallel.data = world_size;
    options.parallel.shard = world_size > 1 ? ShardStage::optimizer : ShardStage::none;
    fail(Category::config, "no layout of {} GPUs is possible; with data-parallel ranks alone: {}", world_size,
         fmt::join(problems(options, world_size), "; "));
}

}  // namespace

int64_t bytes_for_a_step(DeviceRates const& rates) {
    return bytes_for_a_step(static_cast<int64_t>(rates.memory_gib * 1073741824.0));
}

std::string time_report(RunOptions const& options, int world_size, StepCost const& cost, DeviceRates const& rates) {
    MeshShape const mesh = resolve_mesh(options.parallel, world_size);
    StepTime const& time = cost.time;
    std::string text = fmt::format("#\n# time of a step on {}, by rates that are measured or assumed\n", rates.name);
    auto const line = [&](std::string const& name, double seconds, RateSource source) {
        text += fmt::format("#   {:<24} {:>12.2f} ms  {}\n", name, 1e3 * seconds, to_string(source));
    };
    line("matrix products", time.products, of_all({rates.products, rates.memory}));
    line("attention", time.attention, of_attention(rates, options));
    line("other operations", time.other, rates.memory.source);
    bool const one_host = world_size <= rates.gpus_per_host;
    RateSource const links = one_host ? of_all({rates.link, rates.latency}) : of_all({rates.network, rates.hop});
    for (auto const& [axis, seconds] : time.exposed)
        line("exposed: " + axis, seconds, axis == "host" ? rates.host.source : links);
    line("step", time.step,
         of_all({rates.products,
                 rates.memory,
                 {0, of_attention(rates, options)},
                 {0, mesh.world() > 1 ? links : RateSource::measured},
                 {0, time.exposed.contains("host") ? rates.host.source : RateSource::measured}}));
    text += fmt::format("#   {:.0f} tokens/s a GPU\n", rate_of(options, world_size, time));
    if (time.beside > 0)
        text += fmt::format(
            "#   collectives beside that work: {:.2f} ms; slowing it by {:.0f}% ({}) would cost {:.2f} ms\n",
            1e3 * time.beside, 100 * rates.interference.value, to_string(rates.interference.source),
            1e3 * time.beside * rates.interference.value);
    if (world_size > 1)
        text += fmt::format(
            "#   the slowest of {} ranks is behind by {:.1f}% of a step, if speeds deviate by {:.1f}% ({})\n",
            world_size, 100 * rates.straggler.value * slowest_of(world_size), 100 * rates.straggler.value,
            to_string(rates.straggler.source));
    int64_t const there = bytes_for_a_step(rates), taken = cost.memory.sum();
    text += fmt::format("#   memory: {} of tensors in {}, a twentieth left to libraries: {}\n", format_bytes(taken),
                        format_bytes(there), taken <= there ? "fits" : "does not fit");
    return text;
}

std::vector<Layout> best_layouts(RunOptions const& options, int world_size, DeviceRates const& rates, size_t count) {
    std::vector<RunOptions> const all = possible_layouts(options, world_size, rates.gpus_per_host);
    if (all.empty()) refuse_world(options, world_size);
    std::vector<Layout> best;
    std::exception_ptr refused;
    for (RunOptions const& possible : all) {
        try {
            if (auto layout = fitted(possible, world_size, rates)) best.push_back(std::move(*layout));
        } catch (Error const& e) {  // what the kernels of a GPU do not take
            if (e.category() != Category::config) throw;
            refused = std::current_exception();
        }
    }
    if (best.empty() && refused) std::rethrow_exception(refused);
    std::ranges::stable_sort(
        best, {}, [](Layout const& layout) { return std::pair(layout.cost.time.step, layout.cost.memory.sum()); });
    if (best.size() > count) best.erase(best.begin() + static_cast<int64_t>(count), best.end());
    return best;
}

std::string layouts_report(std::vector<Layout> const& layouts, int world_size, DeviceRates const& rates) {
    if (layouts.empty())
        fail(Category::config,
             "no layout of {} GPUs fits into {} ({}): take more GPUs, or a shorter data.sequence_length", world_size,
             format_bytes(bytes_for_a_step(rates)), rates.name);
    std::string text =
        fmt::format("# best layouts for {} GPUs ({}), by the time of a step: set these keys, others stay\n", world_size,
                    rates.name);
    int number = 0;
    for (auto const& [options, cost] : layouts) {
        ParallelOptions const& p = options.parallel;
        text += fmt::format("# {}: {:.1f} ms, {:.0f} tokens/s a GPU, {} of tensors in {}\n", ++number,
                            1e3 * cost.time.step, rate_of(options, world_size, cost.time),
                            format_bytes(cost.memory.sum()), format_bytes(bytes_for_a_step(rates)));
        text += fmt::format("parallel: {{data: {}, context: {}, tensor: {}, shard: {}}}\n", p.data, p.context, p.tensor,
                            perigee::to_string(p.shard));
        text += fmt::format("train:\n  global_batch_size: {}\n  micro_batch_size: {}\n  recompute: {}\n",
                            options.train.global_batch_size, options.train.micro_batch_size,
                            yaml_text(options.train.recompute));
        if (options.train.offload > 0) text += fmt::format("  offload: {}\n", options.train.offload);
    }
    return text;
}

}  // namespace perigee
