// Memory that work on a lane still reads or writes. Whoever frees memory, or hands it out anew, asks here first: arenas
// and buffers do.
#pragma once

#include <cstddef>
#include <vector>

#include "device/event.h"

namespace perigee {

class Queue;

/// Thread rule: as the queues of its device.
class InFlight {
  public:
    /// These bytes are in use until `done`.
    void add(void const* memory, size_t bytes, Event const& done);
    /// What is queued in `queue` from now on finds no byte of this memory in use.
    void wait(Queue& queue, void const* memory, size_t bytes);
    bool empty() const { return entries_.empty(); }

  private:
    struct Entry {
        std::byte const* begin;
        std::byte const* end;
        Event done;
    };
    std::vector<Entry> entries_;
    size_t limit_ = 64;  ///< of entries, before those that are done are removed
};

}  // namespace perigee
