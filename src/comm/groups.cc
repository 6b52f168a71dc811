#include "comm/groups.h"

#include "comm/nccl/nccl_groups.h"

namespace perigee {

namespace {

class HostGroups final : public GroupMaker {
  public:
    explicit HostGroups(HostComm& world) : world_(&world) {}
    std::unique_ptr<Comm> make(Group const& group) override {
        if (group.size == 1) return make_single_comm(group.axis);
        return make_comm_over_host(world_->split(group.color, group.key, group.axis), group.axis);
    }

  private:
    HostComm* world_;
};

}  // namespace

std::unique_ptr<GroupMaker> make_host_groups(HostComm& world) { return std::make_unique<HostGroups>(world); }

std::unique_ptr<GroupMaker> make_group_maker(CommChoice choice, HostComm& world, Device& device,
                                             GpuRanks const& ranks) {
    if (choice == CommChoice::nccl && device.is_host())
        fail(Category::config,
             "parallel.comm is nccl, which carries tensors between GPUs, but ranks compute on the CPU");
    if (choice == CommChoice::mpi || device.is_host() || world.size() == 1) return make_host_groups(world);
    return make_nccl_groups(world, device, ranks);
}

}  // namespace perigee
