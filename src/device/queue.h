// Queues of work on a device, and the events that order them. On the host every call has done its work when it returns,
// so there is nothing to order: CPU ranks run the same schedule as GPUs.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "device/device.h"

namespace perigee {

/// Work of one device that is done in the order in which it was queued. One thread at a time may use the queues of a
/// device.
class Queue {
  public:
    Queue(Device& device, std::string name) : device_(&device), name_(std::move(name)) {}
    virtual ~Queue() = default;
    Queue(Queue const&) = delete;
    Queue& operator=(Queue const&) = delete;

    std::string const& name() const { return name_; }
    Device& device() const { return *device_; }

    /// The end of what is queued so far.
    virtual Event record() = 0;
    /// The same, and the device notes when it was: Event::seconds_since.
    virtual Event stamp() = 0;
    /// What is queued from now on begins after `event` of any queue of this device.
    virtual void wait(Event const& event) = 0;
    /// Copies between memory of the device and memory from allocate_host(), whichever way the pointers say.
    virtual void copy(void* to, void const* from, size_t bytes) = 0;
    /// Runs `work` on the host, after all that was queued before; what it queues here comes next. On a GPU the calling
    /// thread waits for that.
    virtual void call(std::function<void()> const& work) = 0;
    /// Waits until everything queued is done.
    virtual void synchronize() = 0;

    /// Uninitialised memory of the device for work on this queue alone, until the next call; grows when it must.
    void* workspace(size_t bytes);
    size_t workspace_bytes() const { return workspace_.bytes(); }

  private:
    Device* device_;
    std::string name_;
    Buffer workspace_;
};

/// For devices whose every call has done its work when it returns.
class ImmediateQueue final : public Queue {
  public:
    using Queue::Queue;
    Event record() override { return {}; }
    Event stamp() override;
    void wait(Event const&) override {}
    void copy(void* to, void const* from, size_t bytes) override { device().copy(to, from, bytes); }
    void call(std::function<void()> const& work) override { work(); }
    void synchronize() override {}
};

/// The queues of such a device.
class ImmediateQueues {
  public:
    explicit ImmediateQueues(Device& device) : device_(&device) {}
    Queue& at(std::string const& name) { return queues_.try_emplace(name, *device_, name).first->second; }

  private:
    Device* device_;
    std::map<std::string, ImmediateQueue> queues_;
};

}  // namespace perigee
