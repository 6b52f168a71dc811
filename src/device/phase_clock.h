// Where the time of a training step goes, by the device's own clock: the points at which its queue passes from one
// phase to the next. On a GPU points are events, so nothing waits for them; on the CPU they are moments of the host.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <vector>

#include "device/event.h"

namespace perigee {

class Queue;

enum class Phase { none, data, forward, backward, communication, optimizer };
inline constexpr size_t kPhases = 6;

/// Seconds of each phase, by its number.
using PhaseSeconds = std::array<double, kPhases>;

/// For the one thread that uses the queues of a device. Off, and then free of cost, until it is started.
class PhaseClock {
  public:
    struct Mark {
        Phase phase;
        Event begin;
        bool inner = false;  ///< within something that was noted
    };

    void start() { running_ = true; }
    Phase now() const { return now_; }
    /// What is queued from now on belongs to `phase`; returns that of what was queued before.
    Phase enter(Queue& queue, Phase phase);
    /// Seconds of the phases that the device has come to the end of and that no earlier call has told: what it still
    /// works on is left to a later call.
    PhaseSeconds take();

    // For operations that are noted once and queued again and again (Ops::repeat): marks entered while noting are
    // points within what is noted, and pass each time that it is queued. Where it is queued several times before
    // take(), its inner points are known for the last time alone; those before are divided in the same proportion.
    void begin_noting();
    std::vector<Mark> end_noting();
    void queued_again(std::vector<Mark> const& noted);

  private:
    std::vector<double> moments(size_t count) const;

    bool running_ = false;
    bool noting_ = false;
    Phase now_ = Phase::none;
    Phase before_noting_ = Phase::none;
    std::deque<Mark> marks_;
    std::vector<Mark> noted_;
};

/// Counts what a scope queues, or does on the host, as `phase`, where it is within another phase.
class InPhase {
  public:
    InPhase(Queue& queue, Phase phase);
    ~InPhase();
    InPhase(InPhase const&) = delete;
    InPhase& operator=(InPhase const&) = delete;

  private:
    Queue& queue_;
    Phase before_;
};

}  // namespace perigee
