// Groups whose tensors travel by NCCL. nccl.h stays out of this header; a build without NCCL links no_nccl.cc.
#pragma once

#include <memory>

#include "comm/groups.h"

namespace perigee {

/// As make_group_maker; `device` is a GPU. Throws Category::config in a build without NCCL.
std::unique_ptr<GroupMaker> make_nccl_groups(HostComm& world, Device& device, GpuRanks const& ranks);

}  // namespace perigee
