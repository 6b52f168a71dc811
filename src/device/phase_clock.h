// Where the time of a training step goes, by the device's own clock: the points at which its queue passes from one
// phase to the next. On a GPU points are events, so nothing waits for them; on the CPU they are moments of the host.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <vector>

#include "device/event.h"

namespace perigee {

class Device;
class Queue;

enum class Phase { none, data, forward, backward, communication, optimizer };
inline constexpr size_t kPhases = 6;
/// "forward"
char const* to_string(Phase phase) noexcept;

/// Seconds of each phase, by its number.
using PhaseSeconds = std::array<double, kPhases>;

/// For the one thread that uses the queues of a device. Off, and then free of cost, until it is started.
class PhaseClock {
  public:
    struct Mark {
        Phase phase;
        Event begin;
        bool inner = false;  ///< within something that was noted
        int part = 0;        ///< of the phase, as who enters it counts them
    };

    /// With `list_communication`, take_communication() has something to tell.
    void start(bool list_communication = false) {
        running_ = true;
        lists_communication_ = list_communication;
    }
    Phase now() const { return now_; }
    int part() const { return part_; }
    /// What is queued from now on belongs to `phase`.
    void enter(Queue& queue, Phase phase, int part = 0);
    /// Seconds of the phases that the device has come to the end of and that no earlier call has told: what it still
    /// works on is left to a later call.
    PhaseSeconds take();
    /// Seconds of Phase::communication by part, each time it was entered, in order: what take() has told since the last
    /// call.
    std::map<int, std::vector<double>> take_communication();

    // For operations that are noted once and queued again and again (Ops::repeat): marks entered while noting are
    // points within what is noted, and pass each time that it is queued. Where it is queued several times before
    // take(), its inner points are known for the last time alone; those before are divided in the same proportion.
    void begin_noting();
    std::vector<Mark> end_noting();
    void queued_again(Device& device, std::vector<Mark> const& noted);

  private:
    std::vector<double> moments(size_t count) const;
    void show(Device& device, Phase phase);

    bool running_ = false;
    bool lists_communication_ = false;
    bool noting_ = false;
    Phase now_ = Phase::none;
    int part_ = 0;
    Phase shown_ = Phase::none;  ///< as a range of a profiler
    Phase before_noting_ = Phase::none;
    int part_before_noting_ = 0;
    std::map<int, std::vector<double>> communication_;
    std::deque<Mark> marks_;
    std::vector<Mark> noted_;
};

/// Counts what a scope queues, or does on the host, as `phase`, where it is within another phase.
class InPhase {
  public:
    InPhase(Queue& queue, Phase phase, int part = 0);
    ~InPhase();
    InPhase(InPhase const&) = delete;
    InPhase& operator=(InPhase const&) = delete;

  private:
    Queue& queue_;
    Phase before_;
    int part_before_;
};

}  // namespace perigee
