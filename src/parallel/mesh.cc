#include "parallel/mesh.h"

namespace perigee {

void describe(Schema& schema, ParallelOptions& options) {
    schema.add("tensor", options.tensor, between(1, kMostRanks), "ranks that share every matrix (tensor parallel)");
    schema.add("context", options.context, between(1, kMostRanks),
               "ranks that share every sequence (context parallel)");
    schema.add("data", options.data, between(-1, kMostRanks),
               "ranks that train on different samples (data parallel); -1 takes whatever the job's ranks leave");
    schema.choice(
        "context_mode", options.context_mode,
        {{"auto", ContextMode::automatic}, {"ulysses", ContextMode::ulysses}, {"allgather", ContextMode::allgather}},
        "how context-parallel ranks share attention: ulysses exchanges heads for tokens, allgather collects all keys "
        "and values; auto takes allgather for block-sparse layers, and for full ones ulysses where the key/value heads "
        "of a rank divide by `context`");
    schema.add("head_groups", options.head_groups, between(1, 1 << 10),
               "groups in which allgather collects heads, one after the other: gathered keys, values and their "
               "gradients take so many times less memory, and only the first group's gather overlaps with other work; "
               "a divisor of a rank's key/value heads; without effect where nothing is gathered");
    schema.choice(
        "shard", options.shard,
        {{"auto", ShardStage::automatic},
         {"none", ShardStage::none},
         {"optimizer", ShardStage::optimizer},
         {"gradients", ShardStage::gradients},
         {"weights", ShardStage::weights}},
        "what ranks with the same weights share instead of each holding it whole: nothing, the optimizer's state "
        "(ZeRO-1), also gradients (ZeRO-2), also weights (ZeRO-3, FSDP); auto takes the first of the last three whose "
        "step fits into memory");
    schema.alias("zero", options.shard, {{"true", ShardStage::optimizer}, {"false", ShardStage::none}});
    schema.add("bucket_mib", options.bucket_mib, between(1, 1 << 16),
               "most MiB of a block's gradients that ranks sum at once, while the backward goes on");
    schema.choice("comm", options.comm,
                  {{"auto", CommChoice::automatic}, {"nccl", CommChoice::nccl}, {"mpi", CommChoice::mpi}},
                  "what carries tensors between ranks: nccl between GPUs, mpi through memory of the host; auto takes "
                  "nccl for GPUs and mpi for CPUs");
    schema.add(
        "share_gpu", options.share_gpu,
        "several ranks may compute on one GPU, in turns: for tests of layouts on few GPUs; off, a host with fewer "
        "GPUs than ranks is an error");
    schema.add(
        "register_memory", options.register_memory,
        "NCCL lets the ranks of a host reach each other's weights, gradients, keys and values: copy engines then "
        "move them, not multiprocessors; the same bits; without effect where ranks share a GPU or a job has "
        "several hosts");
    schema.choice("bind", options.bind, {{"auto", Bind::automatic}, {"none", Bind::none}},
                  "on a GPU: auto binds each rank to those of its CPUs that are next to its GPU, and asks for memory "
                  "there; none leaves it to the launcher");
}

MeshShape resolve_mesh(ParallelOptions const& options, int world_size) {
    int64_t const tensor = options.tensor, context = options.context, data = options.data;
    for (int64_t axis : {tensor, context, data == -1 ? 1 : data}) {
        if (axis < 1 || axis > world_size) {
            fail(Category::config, "parallel: tensor {}, context {}, data {} do not fit a job of {}", tensor, context,
                 data,
                 world_size > 1
                     ? fmt::format("{} ranks", world_size)
                     : "1 rank: launch/mpirun.sh N starts N ranks, `perigee check --world-size N` plans for N");
        }
    }
    int64_t const inner = tensor * context;
    if (data == -1 && world_size % inner != 0) {
        fail(Category::config, "parallel: tensor {} x context {} = {} does not divide the job's {} ranks", tensor,
             context, inner, world_size);
    }
    int64_t const outer = data == -1 ? world_size / inner : data;
    if (outer * inner != world_size) {
        fail(Category::config, "parallel: tensor {} x context {} x data {} = {} is not the job's {} ranks", tensor,
             context, outer, outer * inner, world_size);
    }
    return {.dp = static_cast<int>(outer), .cp = static_cast<int>(context), .tp = static_cast<int>(tensor)};
}

Mesh::Mesh(ParallelOptions const& options, HostComm& world) : Mesh(options, world, make_host_groups(world)) {}

Mesh::Mesh(ParallelOptions const& options, HostComm& world, Device& device)
    : Mesh(options, world, make_group_maker(options.comm, world, device, options.gpu_ranks())) {}

Mesh::Mesh(ParallelOptions const& options, HostComm& world, std::unique_ptr<GroupMaker> groups)
    : world_(&world),
      shape_(resolve_mesh(options, world.size())),
      context_mode_(options.context_mode),
      head_groups_(options.head_groups),
      groups_(std::move(groups)) {
    // rank = (dp * shape.cp + cp) * shape.tp + tp; a group is the ranks that agree on every other axis.
    int const rank = world.rank();
    int const tp = rank % shape_.tp, dp = rank / (shape_.tp * shape_.cp);
    auto const make = [&](Axis axis, int size, int color) {
        return groups_->make({.axis = axis, .size = size, .color = color, .key = rank});
    };
    tp_ = make(Axis::tensor, shape_.tp, rank / shape_.tp);
    cp_ = make(Axis::context, shape_.cp, dp * shape_.tp + tp);
    dp_ = make(Axis::data, shape_.dp, rank % (shape_.tp * shape_.cp));
    dp_cp_ = make(Axis::data_context, shape_.dp * shape_.cp, tp);
    dp_cp_gather_ = make(Axis::data_context, shape_.dp * shape_.cp, tp);
    pp_ = make(Axis::pipeline, shape_.pp, rank);
    ep_ = make(Axis::expert, shape_.ep, rank);
}

}  // namespace perigee
