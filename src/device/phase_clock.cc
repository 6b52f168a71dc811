#include "device/phase_clock.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "device/queue.h"

namespace perigee {

char const* to_string(Phase phase) noexcept {
    constexpr std::array<char const*, kPhases> kNames = {"none",     "data",          "forward",
                                                         "backward", "communication", "optimizer"};
    return kNames[static_cast<size_t>(phase)];
}

void PhaseClock::enter(Queue& queue, Phase phase, int part) {
    if (!running_ || (phase == now_ && part == part_)) return;
    Mark const mark{.phase = phase, .begin = queue.stamp(), .part = part};
    if (noting_)
        noted_.push_back(mark);
    else
        marks_.push_back(mark);
    now_ = phase;
    part_ = part;
    show(queue.device(), phase);
}

void PhaseClock::show(Device& device, Phase phase) {
    Phase const before = std::exchange(shown_, phase);
    if (phase == before) return;
    if (before != Phase::none) device.end_range();
    if (phase != Phase::none) device.begin_range(to_string(phase));
}

void PhaseClock::begin_noting() {
    noting_ = true;
    before_noting_ = now_;
    part_before_noting_ = part_;
}

std::vector<PhaseClock::Mark> PhaseClock::end_noting() {
    noting_ = false;
    now_ = before_noting_;
    part_ = part_before_noting_;
    return std::exchange(noted_, {});
}

void PhaseClock::queued_again(Device& device, std::vector<Mark> const& noted) {
    if (!running_ || noted.empty()) return;
    for (Mark const& mark : noted)
        marks_.push_back({.phase = mark.phase, .begin = mark.begin, .inner = true, .part = mark.part});
    now_ = noted.back().phase;
    part_ = noted.back().part;
    show(device, now_);
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
    for (size_t i = 0; i + 1 < count; ++i) {
        double const passed = moment[i + 1] - moment[i];
        seconds[static_cast<size_t>(marks_[i].phase)] += passed;
        if (lists_communication_ && marks_[i].phase == Phase::communication)
            communication_[marks_[i].part].push_back(passed);
    }
    marks_.erase(marks_.begin(), unreached - 1);
    return seconds;
}

std::map<int, std::vector<double>> PhaseClock::take_communication() { return std::exchange(communication_, {}); }

InPhase::InPhase(Queue& queue, Phase phase, int part)
    : queue_(queue), before_(queue.device().phases().now()), part_before_(queue.device().phases().part()) {
    if (before_ != Phase::none) queue.device().phases().enter(queue, phase, part);
}

InPhase::~InPhase() {
    if (before_ == Phase::none) return;
    try {
        queue_.device().phases().enter(queue_, before_, part_before_);
    } catch (std::exception const&) {
        // The GPU has failed; whoever waits for it next says so.
    }
}

}  // namespace perigee
