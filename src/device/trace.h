// What the queues of a device do when: spans of work, for a viewer of traces. Free of cost until it is started.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/phase_clock.h"

namespace perigee {

/// For the one thread that uses the queues of a device.
class Trace {
  public:
    /// Work that one queue did between two of its points.
    struct Span {
        std::string name, queue;
        Phase phase = Phase::none;      ///< in which it was queued
        double begin = 0, seconds = 0;  ///< begin: after start()
    };

    /// Spans count from what is queued in `queue` now.
    void start(Queue& queue);
    bool running() const { return running_; }
    /// Ends, waits for the device, and returns the spans in the order in which they were queued.
    std::vector<Span> stop(Queue& queue);

    /// The number of a span that begins, to be given to end().
    size_t begin(Queue& queue, std::string name);
    void end(size_t span, Queue& queue);

  private:
    struct Noted {
        std::string name;
        Phase phase;
        Queue const* queue;
        Event begin, end;
    };

    bool running_ = false;
    Event start_;
    std::vector<Noted> noted_;
};

/// What a scope queues in `queue` is one span of its device's trace, and one range of a profiler's timeline.
class InSpan {
  public:
    InSpan(Queue& queue, char const* name) : InSpan(queue, std::string(name)) {}
    InSpan(Queue& queue, std::string name);
    ~InSpan();
    InSpan(InSpan const&) = delete;
    InSpan& operator=(InSpan const&) = delete;

  private:
    Queue& queue_;
    size_t number_;
};

}  // namespace perigee
