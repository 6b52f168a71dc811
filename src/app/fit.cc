#include "app/fit.h"

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

/// A GPU's libraries take some of its memory, too.
int64_t for_a_step(HostMemory const& there, bool gpu) { return gpu ? there.bytes / 20 * 19 : there.bytes; }

}  // namespace

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
    HostMemory const there = memory_of(options, local_ranks);
    ShardStage const mine = first_stage_that_fits(options, world.size(), for_a_step(there, takes_gpu(options.device)));
    options.parallel.shard = static_cast<ShardStage>(world.max(static_cast<int64_t>(mine)));
    if (world.rank() > 0 || options.parallel.shard <= ShardStage::optimizer) return options;
    log::info(
        "parallel.shard auto: {} too, as a step would not fit into the {} of {} without",
        options.parallel.shard == ShardStage::weights ? "gradients and weights are shared" : "gradients are shared",
        format_bytes(there.bytes), there.what);
    return options;
}

void check_fits(RunOptions const& options, int world_size, int local_ranks) {
    HostMemory const there = memory_of(options, local_ranks);
    RunOptions least = options;
    least.attention.kind = AttentionKind::full;
    least.attention.schedule.clear();
    StepMemory const needed = step_cost(least, world_size).memory;
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
