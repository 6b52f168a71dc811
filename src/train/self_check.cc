// How a learner tells faults of a device from what data and weights lead to.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/log.h"
#include "train/learner.h"
#include "train/replicas.h"

namespace perigee {

namespace {

/// Tolerances where bits may differ: the backward may sum in any order.
constexpr double kLossTolerance = 1e-3, kSquaresTolerance = 0.1;

/// The names of the ranks where it holds. Collective.
std::string those(HostComm& world, std::vector<std::string> const& names, bool holds) {
    std::vector<std::string> list;
    auto const said = world.gather_text(holds ? "x" : "");
    for (size_t i = 0; i < said.size(); ++i)
        if (!said[i].empty()) list.push_back(names[i]);
    return fmt::format("{}", fmt::join(list, ", "));
}

}  // namespace

bool Learner::differ(double a, double b, double tolerance) const {
    if (options_.deterministic || session_.ops().device().is_host())
        return std::bit_cast<uint64_t>(a) != std::bit_cast<uint64_t>(b);
    if (!std::isfinite(a) || !std::isfinite(b)) return std::isfinite(a) != std::isfinite(b);
    return std::abs(a - b) > tolerance * std::max(std::abs(a), std::abs(b));
}

Learner::Sums Learner::compute_again(Work const& work, Sums const& first) {
    Sums const second = loss_and_gradient(work);
    enter(Phase::communication);
    bool const other_loss = differ(first.loss, second.loss, kLossTolerance);
    bool const other = other_loss || differ(first.squares, second.squares, kSquaresTolerance);
    HostComm& world = mesh_.world();
    if (!world.any(other)) {
        log::info("step {}: computed again, with the same result", work.step);
        return first;
    }
    // Gradients are sums over ranks; the loss is a rank's own.
    auto const names = rank_names(session_);
    std::string const by_loss = those(world, names, other_loss), by_gradient = those(world, names, other);
    if (world.rank() == 0)
        log::warn("step {}: computed again, with another {}: a passing fault; the second result counts", work.step,
                  by_loss.empty() ? "gradient, seen by " + by_gradient : "loss on " + by_loss);
    return second;
}

void Learner::check_replicas(Work const& work) {
    auto const tensors = replicated_tensors(session_, optimizer_, grads_);
    auto const found = compare_replicas(session_, tensors);
    if (!found) return;
    auto const names = rank_names(session_);
    std::string const what = fmt::format("step {}: {}", work.step, to_string(*found, names));
    if (!compare_replicas(session_, tensors)) {
        if (mesh_.world().rank() == 0)
            log::warn("{}; not so when looked at again: a passing fault, of reading alone", what);
        return;
    }
    Sums const first = loss_and_gradient(work), second = loss_and_gradient(work);
    std::string const faulty = those(mesh_.world(), names, differ(first.loss, second.loss, kLossTolerance));
    if (!faulty.empty())
        fail(Category::faulty_device, "{}; the step computed twice has two results on {}: a lasting fault", what,
             faulty);
    std::string const see = those(mesh_.world(), names, differ(first.squares, second.squares, kSquaresTolerance));
    if (!see.empty())
        fail(Category::faulty_device,
             "{}; the step computed twice has one loss on every rank, but two gradients, seen by {}: a lasting fault",
             what, see);
    fail(Category::corruption,
         "{}; the step computed twice has one result on every rank: a passing fault. The next start goes on from the "
         "last checkpoint",
         what);
}

}  // namespace perigee
