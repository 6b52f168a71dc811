// What a training step takes and sends, found out by playing one: the code that trains runs on a device without memory,
// with operations that compute nothing, among ranks that do not exist. No formula has to follow its changes.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "app/step_clock.h"
#include "comm/host_board.h"
#include "train/options.h"

namespace perigee {

/// Bytes of the device's memory that a rank takes, by class. The last three are each class's own peak during a step;
/// they need not meet, and `step` is the peak of all of them together.
struct StepMemory {
    int64_t weights = 0;
    int64_t gradients = 0;
    int64_t optimizer = 0;  ///< moments, and fp32 weights where the model has bf16
    int64_t buckets = 0;    ///< in which ranks sum gradients, for as long as the run lasts
    int64_t gathered = 0;   ///< keys and values of whole packs that context parallelism keeps room for
    int64_t scratch = 0;    ///< of attention
    int64_t step = 0;
    int64_t activations = 0;
    int64_t logits = 0;
    int64_t messages = 0;  ///< sent from and received into by tensor and context parallelism
    int64_t host = 0;      ///< beside the device's: pinned memory of the host under train.offload and optimizer.offload
    int64_t save = 0;      ///< memory of the host too: the copy that a checkpoint is written from, pinned with a GPU
    int64_t context = 0;   ///< CUDA's, and its libraries' kernels; NCCL takes memory beside that
    /// Of all tensors.
    int64_t sum() const { return weights + gradients + optimizer + buckets + gathered + scratch + step; }
    int64_t in_use() const { return sum() + context; }
};

/// Who exchanges what, and how.
struct MessageKind {
    std::string axis;  ///< of the mesh: "tensor", "context", "data", "data x context", or "all"
    Collective collective = Collective::none;
    std::string content;  ///< "weights", "gradients", "activations", or "scalars" of the host
    auto operator<=>(MessageKind const&) const = default;
};

struct Sent {
    int64_t calls = 0;
    /// Of n ranks each brings x bytes and sends: all_gather x (n-1); reduce_scatter and all_to_all x (n-1)/n;
    /// all_reduce, as the two in turn, 2 x (n-1)/n; broadcast x (n-1)/n, the mean of a chain.
    double bytes = 0;
};
using Traffic = std::map<MessageKind, Sent>;

struct StepCost {
    StepMemory memory;
    Traffic sent;   ///< by a rank in a step of the whole global batch, groups of one rank left out
    StepTime time;  ///< of such a step that follows another, where rates are given
};

/// For `rank` of `world_size`, or where it is not given for the last of the context axis, whose queries have the most
/// keys before them: computing in fp32 on the CPU or bf16 on a GPU, on micro-batches of full documents whose every
/// token carries loss, and the most demanding attention of the schedule. All ranks take and send the same. `options`
/// are resolved and free of problems for this world. With `rates`, of a GPU whatever `device` says.
StepCost step_cost(RunOptions const& options, int world_size, DeviceRates const* rates = nullptr,
                   std::optional<int> rank = {});

}  // namespace perigee
