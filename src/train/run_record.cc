#include "train/run_record.h"

#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "device/cpu_name.h"
#include "ops/gpu_kernels.h"
#include "train/described.h"
#include "train/failure.h"

namespace perigee {

std::string hardware(Session& session) {
    Device& device = session.ops().device();
    std::string const mine = device.is_host() ? cpu_name() : device.name();
    std::map<std::string, int64_t> devices;
    std::set<std::string> hosts;
    for (std::string const& rank : session.mesh().world().gather_text(host_name() + '\n' + mine)) {
        size_t const end = rank.find('\n');
        hosts.insert(rank.substr(0, end));
        ++devices[rank.substr(end + 1)];
    }
    std::vector<std::string> parts;
    for (auto const& [name, count] : devices)
        parts.push_back(device.is_host() ? fmt::format("{} rank{} on {}", count, count == 1 ? "" : "s", name)
                                         : fmt::format("{} x {}", count, name));
    constexpr size_t kMostNamed = 4;
    std::vector<std::string> named(
        hosts.begin(), std::next(hosts.begin(), static_cast<std::ptrdiff_t>(std::min(kMostNamed, hosts.size()))));
    if (hosts.size() > kMostNamed) named.push_back("...");
    return fmt::format("{}; {} host{}: {}", fmt::join(parts, ", "), hosts.size(), hosts.size() == 1 ? "" : "s",
                       fmt::join(named, ", "));
}

std::string run_record(Session& session, Launched const& launched, JobFacts const& job, std::string const& hardware) {
    using Json = nlohmann::ordered_json;
    MeshShape const mesh = session.mesh().shape();
    auto const now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
    Json record = {{"run", job.run_id},
                   {"program", launched.program},
                   {"started", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
                   {"first_step", job.first_step},
                   {"hardware", hardware},
                   {"ranks", mesh.world()},
                   {"layout", job.layout},
                   {"parameters", session.parameters()},
                   {"trained_parameters", session.layout().global_size()},
                   {"data", job.data}};
    if (auto const kernels = gpu_kernels(session.ops().device())) record["kernels"] = to_string(*kernels);
    if (launched.memory_planned_bytes) record["memory_planned_bytes"] = *launched.memory_planned_bytes;
    record["config"] = Json::parse(options_text(session.options()));
    return record.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace perigee
