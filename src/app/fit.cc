#include "app/fit.h"

#include <algorithm>
#include <numeric>

#include "app/dry_run.h"
#include "base/error.h"
#include "base/log.h"
#include "device/device.h"
#include "device/host_memory.h"
#include "train/memory.h"
#include "train/progress.h"
#include "train/session.h"

namespace perigee {

namespace {

HostMemory memory_of(RunOptions const& options, int local_ranks) {
    if (!takes_gpu(options.device)) return host_memory(local_ranks);
    auto const device = make_cuda_device(options.gpu);
    return {.bytes = device->total_bytes(), .what = device->name()};
}

int64_t least_of_all(HostComm& world, int64_t bytes) { return -world.max(-bytes); }

/// Layers in the order in which they go over to a level that costs more.
std::vector<size_t> cheapest_first(RunOptions const& options) {
    auto const step = next_moba_step(options.attention, 0).value_or(0);
    auto const kinds = layer_selections(options.attention, options.model.num_hidden_layers, step, 0);
    std::vector<size_t> order(kinds.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_partition(order, [&](size_t layer) { return !is_full(kinds[layer]); });
    return order;
}

}  // namespace

int64_t bytes_for_a_step(int64_t of_gpu) { return of_gpu / 20 * 19; }

bool asks_for_memory(RunOptions const& options, int world_size) {
    if (options.train.recompute == kRecomputeAuto || options.train.offload == kOffloadAuto) return true;
    MeshShape const mesh = resolve_mesh(options.parallel, world_size);
    return options.parallel.shard == ShardStage::automatic && mesh.dp * mesh.cp > 1;
}

std::string decided_for(int64_t bytes) {
    return bytes > 0 ? fmt::format("for a step in {}", format_bytes(bytes))
                     : "as the memory of the device is not known here";
}

char const* to_string(ShardStage stage) {
    switch (stage) {
        case ShardStage::automatic:
            return "auto";
        case ShardStage::none:
            return "none";
        case ShardStage::optimizer:
            return "optimizer";
        case ShardStage::gradients:
            return "gradients";
        case ShardStage::weights:
            return "weights";
    }
    return "";
}

HostMemory memory_for_a_step(RunOptions const& options, int local_ranks) {
    HostMemory there = memory_of(options, local_ranks);
    if (takes_gpu(options.device)) there.bytes = bytes_for_a_step(there.bytes);
    return there;
}

ShardStage first_stage_that_fits(RunOptions const& options, int world_size, int64_t bytes) {
    MeshShape const mesh = resolve_mesh(options.parallel, world_size);
    if (mesh.dp * mesh.cp == 1) return ShardStage::none;
    RunOptions tried = options;
    for (ShardStage stage : {ShardStage::optimizer, ShardStage::gradients}) {
        tried.parallel.shard = stage;
        if (bytes == 0 || step_cost(tried, world_size).memory.sum() <= bytes) return stage;
    }
    return ShardStage::weights;
}

RunOptions with_stage_decided(RunOptions options, HostComm& world, int local_ranks) {
    if (options.parallel.shard != ShardStage::automatic) return options;
    HostMemory const there = memory_for_a_step(options, local_ranks);
    ShardStage const mine = first_stage_that_fits(options, world.size(), there.bytes);
    options.parallel.shard = static_cast<ShardStage>(world.max(static_cast<int64_t>(mine)));
    if (world.rank() > 0 || options.parallel.shard <= ShardStage::optimizer) return options;
    log::info(
        "parallel.shard auto: {} too, as a step would not fit into the {} of {} without",
        options.parallel.shard == ShardStage::weights ? "gradients and weights are shared" : "gradients are shared",
        format_bytes(there.bytes), there.what);
    return options;
}

std::vector<Recompute> recompute_that_fits(RunOptions const& options, int world_size, int64_t bytes) {
    std::vector<size_t> const order = cheapest_first(options);
    std::vector<Recompute> levels(order.size(), Recompute::none);
    RunOptions tried = options;
    auto const fits = [&] {
        tried.train.recompute = to_string(levels);
        return bytes == 0 || step_cost(tried, world_size).memory.sum() <= bytes;
    };
    if (fits()) return levels;
    for (Recompute next : {Recompute::elementwise, Recompute::mlp, Recompute::attention, Recompute::block}) {
        std::vector<Recompute> const before = levels;
        auto const move_over = [&](size_t layers) {
            levels = before;
            for (size_t i = 0; i < layers; ++i) levels[order[i]] = next;
        };
        move_over(order.size());
        if (!fits()) continue;
        size_t few = 0, enough = order.size();
        while (enough - few > 1) {
            size_t const middle = few + (enough - few) / 2;
            move_over(middle);
            (fits() ? enough : few) = middle;
        }
        move_over(enough);
        break;
    }
    return levels;
}

int64_t offload_that_fits(RunOptions const& options, int world_size, int64_t bytes) {
    int64_t enough = std::max<int64_t>(options.model.num_hidden_layers - 2, 0), few = -1;
    if (bytes == 0 || !takes_gpu(options.device)) return 0;
    RunOptions tried = options;
    while (enough - few > 1) {
        tried.train.offload = few + (enough - few) / 2;
        (step_cost(tried, world_size).memory.sum() <= bytes ? enough : few) = tried.train.offload;
    }
    return enough;
}

RunOptions with_memory_policy_decided(RunOptions options, HostComm& world, int local_ranks) {
    bool const recompute = options.train.recompute == kRecomputeAuto, offload = options.train.offload == kOffloadAuto;
    if (!recompute && !offload) return options;
    int64_t const bytes = least_of_all(world, memory_for_a_step(options, local_ranks).bytes);
    if (recompute) options.train.recompute = to_string(recompute_that_fits(options, world.size(), bytes));
    if (offload) options.train.offload = offload_that_fits(options, world.size(), bytes);
    if (world.rank() == 0)
        log::info("train.recompute {}, train.offload {}, {}", options.train.recompute, options.train.offload,
                  decided_for(bytes));
    return options;
}

void check_fits(RunOptions const& options, int world_size, int local_ranks) {
    HostMemory const there = memory_of(options, local_ranks);
    RunOptions least = options;
    least.attention.kind = AttentionKind::full;
    least.attention.schedule.clear();
    StepMemory needed = step_cost(least, world_size).memory;
    if (takes_gpu(options.device)) {
        HostMemory const host = host_memory(local_ranks);
        int64_t const taken = needed.host + needed.save;
        if (host.bytes > 0 && taken > host.bytes)
            throw OutOfMemory(fmt::format(
                "train.offload = {}{} takes {} of the host for each rank, and the copy that a checkpoint is written "
                "from {}, together {} bytes; {} has {} ({} bytes) for it: offload less, or let train.recompute drop "
                "more layers",
                options.train.offload, options.optimizer.offload ? " with optimizer.offload" : "",
                format_bytes(needed.host), format_bytes(needed.save), taken, host.what, format_bytes(host.bytes),
                host.bytes));
    } else {
        needed.step += needed.host + needed.save;
    }
    if (there.bytes == 0 || needed.sum() <= there.bytes) return;
    MemoryUse const use{.weights = needed.weights,
                        .gradients = needed.gradients,
                        .optimizer = needed.optimizer,
                        .activations = needed.step};
    throw OutOfMemory(out_of_memory_report(
        fmt::format("a training step takes at least {} ({} bytes) on each rank, and {} has {} ({} bytes)",
                    format_bytes(needed.sum()), needed.sum(), there.what, format_bytes(there.bytes), there.bytes),
        use, options));
}

}  // namespace perigee
