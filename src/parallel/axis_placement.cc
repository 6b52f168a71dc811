#include "parallel/axis_placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace perigee {

namespace {

/// `stride` ranks lie between neighbours of a group.
AxisPlacement place_axis(char const* axis, int size, int stride, std::span<int const> host_of) {
    AxisPlacement placement;
    placement.axis = axis;
    placement.size = size;
    placement.groups = static_cast<int>(host_of.size()) / size;
    for (int rank = 0; rank < std::ssize(host_of); ++rank) {
        if (rank / stride % size != 0) continue;  // not the first of its group
        std::vector<int> group;
        std::set<int> hosts;
        for (int i = 0; i < size; ++i) {
            group.push_back(rank + i * stride);
            hosts.insert(host_of[static_cast<size_t>(group.back())]);
        }
        placement.most_hosts = std::max(placement.most_hosts, static_cast<int>(hosts.size()));
        if (hosts.size() == 1) continue;
        if (placement.crossing++ == 0) placement.example = std::move(group);
    }
    return placement;
}

}  // namespace

std::vector<AxisPlacement> place_axes(MeshShape const& shape, std::span<int const> host_of) {
    PERIGEE_CHECK(std::ssize(host_of) == shape.world(), "{} hosts for {} ranks", host_of.size(), shape.world());
    return {place_axis("tensor", shape.tp, 1, host_of), place_axis("context", shape.cp, shape.tp, host_of),
            place_axis("data", shape.dp, shape.tp * shape.cp, host_of)};
}

std::string describe(std::vector<AxisPlacement> const& axes) {
    std::string within, over;
    for (AxisPlacement const& axis : axes) {
        if (axis.size == 1) continue;
        if (axis.crossing == 0)
            within += fmt::format("{}{} {}", within.empty() ? "" : ", ", axis.axis, axis.size);
        else
            over +=
                fmt::format("{}{} {} over {} hosts", over.empty() ? "" : ", ", axis.axis, axis.size, axis.most_hosts);
    }
    if (!within.empty()) within += " within a host";
    return within + (within.empty() || over.empty() ? "" : "; ") + over;
}

std::string tensor_warning(MeshShape const& shape, std::span<int const> host_of) {
    AxisPlacement const tensor = place_axes(shape, host_of).front();
    if (tensor.crossing == 0) return "";
    std::string text = fmt::format(
        "{} of {} tensor-parallel groups cross hosts, the first with the ranks {}: every layer waits for the network "
        "several times",
        tensor.crossing, tensor.groups, fmt::join(tensor.example, ", "));
    std::vector<int> sorted(host_of.begin(), host_of.end());
    std::ranges::sort(sorted);
    if (place_axes(shape, sorted).front().crossing == 0)
        return text +
               "; let ranks fill one host after the other, as launch/mpirun.sh and `srun --distribution=block` do";
    std::map<int, int> ranks_of;
    for (int host : host_of) ++ranks_of[host];
    int fits = shape.tp;  // the largest that divides the ranks of every host
    for (auto const& [host, ranks] : ranks_of) fits = std::gcd(fits, ranks);
    return text + fmt::format("; parallel.tensor {} would stay within hosts", fits);
}

}  // namespace perigee
