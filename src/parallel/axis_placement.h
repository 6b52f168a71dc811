// Which axes of the mesh stay within a host. Tensor parallelism is the innermost axis, then context, then data, so that
// where ranks fill one host after the other, the axis that sends most often stays within hosts longest.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace perigee {

struct AxisPlacement {
    char const* axis = "";
    int size = 1;
    int groups = 1;
    int crossing = 0;          ///< groups with ranks on several hosts
    int most_hosts = 1;        ///< that any group is spread over
    std::vector<int> example;  ///< ranks of the first group that crosses; empty where none does
};

/// Tensor, context and data, in this order. `host_of` says the host of every rank: as many as the shape has.
std::vector<AxisPlacement> place_axes(MeshShape const& shape, std::span<int const> host_of);

/// For the log: "tensor 4, context 2 within a host; data 3 over 3 hosts".
std::string describe(std::vector<AxisPlacement> const& axes);

/// A warning where tensor parallelism crosses hosts, with what to do about it; empty where it does not.
std::string tensor_warning(MeshShape const& shape, std::span<int const> host_of);

}  // namespace perigee
