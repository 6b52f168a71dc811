#include "train/slow_ranks.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "device/gpu_health.h"
#include "device/gpu_list.h"
#include "train/replicas.h"

namespace perigee {

namespace {

double own_seconds(PhaseSeconds const& phases) {
    return std::accumulate(phases.begin(), phases.end(), 0.0) - phases.at(static_cast<size_t>(Phase::communication)) -
           phases.at(static_cast<size_t>(Phase::none));
}

std::string health_of(Session const& session) {
    if (session.ops().device().is_host()) return "";
    auto const gpus = list_gpus().pci_ids;
    auto const gpu = static_cast<size_t>(session.options().gpu);
    return ", " + to_string(gpu < gpus.size() ? gpu_health(gpus[gpu]) : std::nullopt);
}

}  // namespace

std::vector<int> slow_ranks(std::span<double const> seconds, double factor) {
    std::vector<double> sorted(seconds.begin(), seconds.end());
    std::ranges::sort(sorted);
    double const median = sorted.at((sorted.size() - 1) / 2);
    std::vector<int> slow;
    for (size_t i = 0; i < seconds.size(); ++i)
        if (seconds[i] > factor * median) slow.push_back(static_cast<int>(i));
    return slow;
}

void SlowRanks::take(Session const& session, PhaseSeconds const& phases) {
    HostComm& world = session.mesh().world();
    double const factor = session.options().guard.slow_factor;
    if (world.size() == 1 || factor <= 0 || steps_++ < 0) return;
    seconds_ += own_seconds(phases);
    if (steps_ < every_) return;
    double mine = seconds_ / static_cast<double>(std::exchange(steps_, 0));
    seconds_ = 0;
    std::vector<double> all(static_cast<size_t>(world.size()));
    world.all_gather(TensorView(all.data(), Shape{world.size()}), TensorView(&mine, Shape{1}));
    auto const slow = slow_ranks(all, factor);
    if (slow.empty()) return;
    auto const names = rank_names(session), health = world.gather_text(health_of(session));
    if (world.rank() != 0) return;
    std::vector<double> sorted = all;
    std::ranges::sort(sorted);
    for (int const rank : slow) {
        auto const i = static_cast<size_t>(rank);
        log::warn("{}{} is slow: {:.3f} s of work in a step, the median rank {:.3f} s", names[i], health[i], all[i],
                  sorted[(sorted.size() - 1) / 2]);
    }
}

}  // namespace perigee
