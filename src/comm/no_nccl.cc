// Linked in place of comm/nccl/ when the build has no NCCL.
#include "base/error.h"
#include "comm/nccl/nccl_groups.h"

namespace perigee {

std::unique_ptr<GroupMaker> make_nccl_groups(HostComm&, Device&, GpuRanks const&) {
    fail(Category::config,
         "this perigee was built without NCCL, which carries tensors between GPUs: install libnccl-dev and build the "
         "`cuda` preset anew, or let them go through memory of the host with parallel.comm=mpi");
}

}  // namespace perigee
