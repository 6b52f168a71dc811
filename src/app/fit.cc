#include "app/fit.h"

#include "app/dry_run.h"
#include "base/error.h"
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

}  // namespace

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
