#include "device/queue.h"

#include <exception>

namespace perigee {

void Device::settle(void const* memory, size_t bytes) noexcept {
    if (in_flight_.empty()) return;  // always so while a device ends, when its queues are gone
    try {
        in_flight_.wait(queue(), memory, bytes);
    } catch (std::exception const&) {
        // The GPU has failed; whoever waits for it next says so.
    }
}

void* Queue::workspace(size_t bytes) {
    if (workspace_.bytes() < bytes) {
        synchronize();  // earlier work may still use it
        workspace_ = {};
        workspace_ = Buffer(*device_, bytes);
    }
    return workspace_.data();
}

}  // namespace perigee
