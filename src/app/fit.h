// Whether a run can fit into memory at all, asked before it starts.
#pragma once

#include "comm/host_comm.h"
#include "device/host_memory.h"
#include "train/options.h"

namespace perigee {

/// Bytes of a GPU with this much memory for a step: all but a twentieth, which its libraries take.
int64_t bytes_for_a_step(int64_t of_gpu);

/// Whether the memory of the device decides something: `auto` in train.recompute or
/// train.offload, or in parallel.shard where ranks share.
bool asks_for_memory(RunOptions const& options, int world_size);

/// What such a decision was made for: "for a step in 133GiB", or that the memory is not known, where `bytes` is 0.
std::string decided_for(int64_t bytes);

/// The value of the key `parallel.shard`.
char const* to_string(ShardStage stage);

/// What `parallel.shard: auto` means: the first of optimizer, gradients and weights with which a step takes at most
/// `bytes` on each rank, and weights where none does; none for one rank, optimizer where `bytes` is 0, unknown.
ShardStage first_stage_that_fits(RunOptions const& options, int world_size, int64_t bytes);

/// The options with `parallel.shard: auto` decided by the memory of all ranks; says what it decided where several ranks
/// share. Other stages stay. Collective.
RunOptions with_stage_decided(RunOptions options, HostComm& world, int local_ranks);

/// What `train.recompute: auto` means: the cheapest levels with which a step takes at most `bytes` on each rank, the
/// most saving ones where none do, and none where `bytes` is 0, unknown. From one level to the next, layers go over one
/// by one, block-sparse ones first, as their attention costs least.
std::vector<Recompute> recompute_that_fits(RunOptions const& options, int world_size, int64_t bytes);

/// What `train.offload: auto` means: the fewest layers with which a step takes at most `bytes` on each rank, or as many
/// as there are to offload; 0 where `bytes` is 0, unknown, or the device is the host itself.
int64_t offload_that_fits(RunOptions const& options, int world_size, int64_t bytes);

/// The options with train.recompute, then train.offload, decided by the rank with the least memory where they are
/// `auto`; says what it decided. Collective.
RunOptions with_memory_policy_decided(RunOptions options, HostComm& world, int local_ranks);

/// Bytes for a step on this rank's device, less what a GPU's libraries take, and what has them; 0 where that is not
/// known.
HostMemory memory_for_a_step(RunOptions const& options, int local_ranks);

/// Throws OutOfMemory where a step takes more memory than this rank can ever have: on a GPU all of that GPU's,
/// otherwise the host's, see device/host_memory.h. Says both numbers, where memory would go, and what to change. Counts
/// with full attention, the least that any choice of MoBA takes; a run that passes may still meet the end of its
/// memory. The memory of a GPU's host has to hold what is offloaded there.
void check_fits(RunOptions const& options, int world_size, int local_ranks);

}  // namespace perigee
