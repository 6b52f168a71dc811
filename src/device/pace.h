// Delays of a given length in a queue, to simulate a link that does not exist.
#pragma once

#include <memory>

#include "device/queue.h"

namespace perigee {

class Pace {
  public:
    virtual ~Pace() = default;
    /// Notes the moment at which the queue comes here.
    virtual void begin(Queue& queue) = 0;
    /// What is queued later begins at the earliest this many seconds after the queue's last begin().
    virtual void end(Queue& queue, double seconds) = 0;
};

/// For queues of this device, which outlives it. On the CPU the caller sleeps; a GPU's queue waits without
/// taking a multiprocessor.
std::unique_ptr<Pace> make_pace(Device& device);

namespace detail {
std::unique_ptr<Pace> make_cuda_pace(Device& device);
}

}  // namespace perigee
