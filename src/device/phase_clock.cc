#include "device/phase_clock.h"

#include <algorithm>
#include <map>
#include <utility>

#include "device/queue.h"

namespace perigee {

Phase PhaseClock::enter(Queue& queue, Phase phase) {
    Phase const before = now_;
    if (!running_ || phase == before) return before;
    if (noting_)
        noted_.push_back({phase, queue.stamp()});
    else
        marks_.push_back({phase, queue.stamp()});
    now_ = phase;
    return before;
}

void PhaseClock::begin_noting() {
    noting_ = true;
    before_noting_ = now_;
}

std::vector<PhaseClock::Mark> PhaseClock::end_noting() {
    noting_ = false;
    now_ = before_noting_;
    return std::exchange(noted_, {});
}

void PhaseClock::queued_again(std::vector<Mark> const& noted) {
    if (!running_ || noted.empty()) return;
    for (Mark const& mark : noted) marks_.push_back({mark.phase, mark.begin, /*inner=*/true});
    now_ = noted.back().phase;
}

/// Of the first `count` marks, in seconds after the first one, which no later mark shares.
std::vector<double> PhaseClock::moments(size_t count) const {
    std::map<Event::Point const*, size_t> last;  // mark of this point
    for (size_t i = 0; i < count; ++i) last[marks_[i].begin.point()] = i;
    auto const last_like = [&](size_t i) { return last.at(marks_[i].begin.point()); };
    auto const between = [&](size_t from, size_t to) { return marks_[to].begin.seconds_since(marks_[from].begin); };
    std::vector<double> moment(count);
    size_t known = 0;  // the latest mark whose point still tells its moment
    for (size_t i = 1; i < count; ++i) {
        size_t const same = last_like(i);
        if (same == i) {
            moment[i] = moment[known] + between(known, i);
            known = i;
        } else {
            double const whole = between(same - 1, same + 1);
            double const share = whole > 0 ? std::clamp(between(same - 1, same) / whole, 0.0, 1.0) : 0;
            moment[i] = moment[known] + share * between(known, i + 1);
        }
    }
    return moment;
}

PhaseSeconds PhaseClock::take() {
    PhaseSeconds seconds{};
    auto const unreached = std::ranges::find_if(marks_, [](Mark const& mark) { return !mark.begin.reached(); });
    auto const count = static_cast<size_t>(unreached - marks_.begin());
    // What comes last may be an inner point, whose end is needed to place it.
    if (count < 2 || (marks_[count - 1].inner && count < marks_.size())) return seconds;
    std::vector<double> const moment = moments(count);
    for (size_t i = 0; i + 1 < count; ++i) seconds[static_cast<size_t>(marks_[i].phase)] += moment[i + 1] - moment[i];
    marks_.erase(marks_.begin(), unreached - 1);
    return seconds;
}

InPhase::InPhase(Queue& queue, Phase phase) : queue_(queue), before_(Phase::none) {
    PhaseClock& clock = queue.device().phases();
    before_ = clock.now() == Phase::none ? Phase::none : clock.enter(queue, phase);
}

InPhase::~InPhase() {
    if (before_ != Phase::none) queue_.device().phases().enter(queue_, before_);
}

}  // namespace perigee
