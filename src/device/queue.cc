#include "device/queue.h"

#include <chrono>
#include <exception>

namespace perigee {

void Device::settle(void const* memory, size_t bytes) noexcept {
    if (in_flight_.empty()) return;
    try {
        in_flight_.wait(queue(), memory, bytes);
    } catch (std::exception const&) {
        // The GPU has failed; whoever waits for it next says so.
    }
}

namespace {

class HostMoment final : public Event::Point {
  public:
    bool reached() const noexcept override { return true; }
    double seconds_since(Point const& earlier) const override {
        auto const* const before = dynamic_cast<HostMoment const*>(&earlier);
        return before != nullptr ? std::chrono::duration<double>(when_ - before->when_).count() : 0;
    }

  private:
    std::chrono::steady_clock::time_point when_ = std::chrono::steady_clock::now();
};

}  // namespace

Event ImmediateQueue::stamp() { return Event(std::make_shared<HostMoment>()); }

void* Queue::workspace(size_t bytes) {
    if (workspace_.bytes() < bytes) {
        synchronize();  // earlier work may still use it
        workspace_ = {};
        workspace_ = Buffer(*device_, bytes);
    }
    return workspace_.data();
}

}  // namespace perigee
