#include "comm/placement.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "base/error.h"

namespace perigee {

namespace {

constexpr size_t kHostsShown = 16;

std::string count(size_t n, char const* noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

int to_int(std::string const& text) {
    int value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
        fail(Category::communication, "a rank's report of its host says `{}` in place of a number", text);
    return value;
}

/// Cores of each rank: ranks of a host that may run on some of the same CPUs share theirs.
void share_cores(Placement& placement) {
    for (Placement::Host const& host : placement.hosts) {
        for (int rank : host.ranks) {
            Seat& seat = placement.seats[static_cast<size_t>(rank)];
            auto const overlaps = [&](int other) {
                return other == rank || !common(seat.cpus, placement.seats[static_cast<size_t>(other)].cpus).empty();
            };
            auto const sharers = std::ranges::count_if(host.ranks, overlaps);
            seat.cores = std::max(1, static_cast<int>(static_cast<std::ptrdiff_t>(seat.cpus.size()) / sharers));
        }
    }
}

/// The hosts that cannot give each of their ranks a GPU, as a sentence; empty where all can.
std::string too_few_gpus(Placement const& placement, bool share) {
    std::string text;
    bool some_have = false;
    for (Placement::Host const& host : placement.hosts) {
        if (host.gpus.size() >= host.ranks.size() || (share && !host.gpus.empty())) continue;
        some_have |= !host.gpus.empty();
        text += fmt::format("{}host {} has {} for its {}", text.empty() ? "" : ", ", host.name,
                            host.gpus.empty() ? "no GPU" : count(host.gpus.size(), "GPU"),
                            count(host.ranks.size(), "rank"));
        if (!host.gpu_problem.empty()) text += fmt::format(" ({})", host.gpu_problem);
    }
    if (text.empty()) return text;
    text += ": ";
    if (some_have && !share)
        text += "start one rank for each GPU, or let ranks share GPUs with `parallel.share_gpu: true`, which is slow; ";
    return text + "`device: cpu` computes without GPUs";
}

/// One property of each of a host's ranks: "0-3" for 0 1 2 3, "0" where all are 0.
std::string list_of(Placement const& placement, Placement::Host const& host, int Seat::*property) {
    std::vector<int> values;
    for (int rank : host.ranks) values.push_back(placement.seats[static_cast<size_t>(rank)].*property);
    if (std::ranges::count(values, values.front()) == std::ssize(values)) return std::to_string(values.front());
    if (std::ranges::is_sorted(values, std::ranges::less_equal{})) return to_text(values);
    return fmt::format("{}", fmt::join(values, " "));
}

std::string describe(Placement const& placement, Placement::Host const& host) {
    bool const many = host.ranks.size() > 1;
    Seat const& first = placement.seats[static_cast<size_t>(host.ranks.front())];
    std::string text = fmt::format("{}: rank{} {}", host.name, many ? "s" : "", to_text(host.ranks));
    if (first.gpu < 0) {
        text += " on the CPU";
    } else {
        text += fmt::format(" on GPU{} {} of {}", many ? "s" : "", list_of(placement, host, &Seat::gpu_of_host),
                            host.gpus.size());
        if (first.node >= 0) text += fmt::format(", NUMA {}", list_of(placement, host, &Seat::node));
    }
    return text + fmt::format(", cores {}", list_of(placement, host, &Seat::cores));
}

}  // namespace

std::string RankReport::to_text() const {
    std::string text = fmt::format("{}\n{}\n{}\n{}\n", host, first_of_host, perigee::to_text(cpus), gpu_problem);
    for (Gpu const& gpu : gpus)
        text += fmt::format("{} {} {}\n", gpu.pci_id, gpu.near.id, perigee::to_text(gpu.near.cpus));
    return text;
}

RankReport RankReport::from_text(std::string const& text) {
    RankReport report;
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, report.host);
    std::getline(lines, line);
    report.first_of_host = to_int(line);
    std::getline(lines, line);
    report.cpus = parse_cpu_list(line);
    std::getline(lines, report.gpu_problem);
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        std::string id, node, cpus;
        words >> id >> node >> cpus;
        report.gpus.push_back({.pci_id = id, .near = {.id = to_int(node), .cpus = parse_cpu_list(cpus)}});
    }
    return report;
}

std::vector<int> Placement::host_of() const {
    std::vector<int> hosts_by_rank;
    for (Seat const& seat : seats) hosts_by_rank.push_back(seat.host);
    return hosts_by_rank;
}

Placement place_ranks(std::span<RankReport const> reports) {
    Placement placement;
    std::map<int, int> known;  // first rank -> host
    for (RankReport const& report : reports) {
        auto const [entry, is_new] = known.try_emplace(report.first_of_host, static_cast<int>(placement.hosts.size()));
        if (is_new) placement.hosts.push_back({.name = report.host, .ranks = {}, .gpus = {}, .gpu_problem = {}});
        Placement::Host& host = placement.hosts[static_cast<size_t>(entry->second)];
        Seat& seat = placement.seats.emplace_back();
        seat.host = entry->second;
        seat.local_rank = static_cast<int>(host.ranks.size());
        seat.cpus = report.cpus;
        host.ranks.push_back(placement.ranks() - 1);
        if (host.gpu_problem.empty()) host.gpu_problem = report.gpu_problem;
        for (RankReport::Gpu const& gpu : report.gpus)
            if (std::ranges::find(host.gpus, gpu.pci_id) == host.gpus.end()) host.gpus.push_back(gpu.pci_id);
    }
    share_cores(placement);
    return placement;
}

void give_gpus(Placement& placement, std::span<RankReport const> reports, GpuOptions const& options) {
    if (std::string const problem = too_few_gpus(placement, options.share); !problem.empty())
        fail(Category::config, "{}", problem);
    for (Placement::Host const& host : placement.hosts) {
        std::map<std::string, int> taken;
        for (int rank : host.ranks) {
            RankReport const& report = reports[static_cast<size_t>(rank)];
            if (report.gpus.empty())
                fail(Category::config, "rank {} on host {} sees no GPU, and other ranks there do: {}", rank, host.name,
                     "give each rank one in CUDA_VISIBLE_DEVICES, or leave it out");
            auto const gpu =
                std::ranges::min_element(report.gpus, {}, [&](RankReport::Gpu const& g) { return taken[g.pci_id]; });
            if (taken[gpu->pci_id]++ > 0 && !options.share)
                fail(Category::config,
                     "rank {} on host {} sees only GPUs that other ranks take ({}): give each rank another one in "
                     "CUDA_VISIBLE_DEVICES, or leave it out, or let ranks share GPUs with `parallel.share_gpu: true`",
                     rank, host.name, gpu->pci_id);
            Seat& seat = placement.seats[static_cast<size_t>(rank)];
            seat.gpu = static_cast<int>(gpu - report.gpus.begin());
            seat.gpu_of_host = static_cast<int>(std::ranges::find(host.gpus, gpu->pci_id) - host.gpus.begin());
            CpuList near = common(report.cpus, gpu->near.cpus);
            if (!options.bind || near.empty()) continue;
            seat.node = gpu->near.id;
            seat.cpus = std::move(near);
        }
    }
    share_cores(placement);
}

std::vector<std::string> describe(Placement const& placement) {
    std::vector<std::string> lines;
    if (placement.hosts.size() > 1)
        lines.push_back(
            fmt::format("{} on {}", count(placement.seats.size(), "rank"), count(placement.hosts.size(), "host")));
    for (size_t i = 0; i < std::min(placement.hosts.size(), kHostsShown); ++i)
        lines.push_back(describe(placement, placement.hosts[i]));
    if (placement.hosts.size() > kHostsShown)
        lines.push_back(fmt::format("and {} more", count(placement.hosts.size() - kHostsShown, "host")));
    return lines;
}

}  // namespace perigee
