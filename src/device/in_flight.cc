#include "device/in_flight.h"

#include <algorithm>

#include "device/queue.h"

namespace perigee {

void InFlight::add(void const* memory, size_t bytes, Event const& done) {
    if (bytes == 0 || done.reached()) return;
    if (entries_.size() >= limit_) {
        std::erase_if(entries_, [](Entry const& entry) { return entry.done.reached(); });
        limit_ = std::max<size_t>(64, 2 * entries_.size());
    }
    auto const* const begin = static_cast<std::byte const*>(memory);
    entries_.push_back({begin, begin + bytes, done});
}

void InFlight::wait(Queue& queue, void const* memory, size_t bytes) {
    auto const* const begin = static_cast<std::byte const*>(memory);
    for (Entry const& entry : entries_)
        if (begin < entry.end && entry.begin < begin + bytes) queue.wait(entry.done);
}

}  // namespace perigee
