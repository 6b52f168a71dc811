#include "train/seat.h"

#include <algorithm>

#include "base/log.h"
#include "device/gpu_list.h"
#include "parallel/axis_placement.h"
#include "train/failure.h"

namespace perigee {

namespace {

RankReport look_around(RunOptions const& options, Launch const& launch) {
    RankReport report{.host = host_name(),
                      .first_of_host = launch.board().ranks.front().rank,
                      .cpus = allowed_cpus(),
                      .gpus = {},
                      .gpu_problem = {}};
    if (options.device == DeviceChoice::cpu) return report;
    GpuList const list = list_gpus();
    report.gpu_problem = list.problem;
    for (std::string const& id : list.pci_ids) report.gpus.push_back({.pci_id = id, .near = numa_node_of(id)});
    return report;
}

void say(RunOptions const& options, Placement const& placement, bool speaks) {
    if (placement.ranks() == 1 && placement.seats.front().gpu < 0) return;
    bool const several_hosts = placement.hosts.size() > 1;
    std::string axes, warning;
    if (several_hosts) {
        MeshShape const shape = resolve_mesh(options.parallel, placement.ranks());
        axes = describe(place_axes(shape, placement.host_of()));
        warning = tensor_warning(shape, placement.host_of());
    }
    for (std::string const& line : describe(placement)) log::info("{}", line);
    if (!axes.empty()) log::info("parallel: {}", axes);
    if (!warning.empty() && speaks) log::warn("{}", warning);
}

void bind(RunOptions const& options, RankReport const& report, Seat const& seat) {
    if (seat.gpu < 0 || options.parallel.bind == Bind::none) return;
    NumaNode const& near = report.gpus[static_cast<size_t>(seat.gpu)].near;
    if (near.id < 0) return;
    if (seat.node < 0)
        return log::warn("not bound to NUMA node {} of its GPU: of its CPUs {} this process may only use {}", near.id,
                         to_text(near.cpus), to_text(report.cpus));
    Bound const bound = bind_process(seat.cpus, seat.node);
    if (!bound.cpus)
        return log::warn("not bound to the CPUs {} next to its GPU: the system does not allow it", to_text(seat.cpus));
    log::info("bound to CPUs {} of NUMA node {}{}", to_text(seat.cpus), seat.node,
              bound.memory ? " and its memory" : "; the system does not let it choose memory");
}

}  // namespace

void choose_devices(Placement& placement, std::span<RankReport const> reports, DeviceChoice choice,
                    ParallelOptions const& options) {
    bool const there = std::ranges::any_of(
        reports, [](RankReport const& report) { return !report.gpus.empty() || !report.gpu_problem.empty(); });
    if (choice == DeviceChoice::cpu || (choice == DeviceChoice::automatic && !there)) return;
    give_gpus(placement, reports, {.share = options.share_gpu, .bind = options.bind == Bind::automatic});
}

std::string idle_gpus(std::span<RankReport const> reports, DeviceChoice choice) {
    if (choice != DeviceChoice::automatic) return "";
    for (RankReport const& report : reports) {
        if (report.gpu_problem.empty()) continue;
        return fmt::format("host {} has GPUs, and this job computes on the CPU ({}): `device: cpu` asks for that",
                           report.host, report.gpu_problem);
    }
    return "";
}

Seat take_seat(RunOptions const& options, Launch& launch) {
    RankReport const own = look_around(options, launch);
    std::vector<RankReport> reports;
    for (std::string const& text : launch.world().gather_text(own.to_text()))
        reports.push_back(RankReport::from_text(text));
    Placement placement = place_ranks(reports);
    if (built_with_cuda())
        choose_devices(placement, reports, options.device, options.parallel);
    else if (std::string const idle = idle_gpus(reports, options.device); !idle.empty() && launch.world().rank() == 0)
        log::warn("{}", idle);
    say(options, placement, launch.world().rank() == 0);
    Seat seat = placement.seats[static_cast<size_t>(launch.world().rank())];
    bind(options, own, seat);
    return seat;
}

}  // namespace perigee
