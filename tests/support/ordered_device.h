// A race detector for queues. Work is done on the host at once, in the order of the calls; what is checked is whether
// events would order it on a device whose queues run beside each other: every two accesses to the same memory from
// different queues, one of them a write, must be ordered by record() and wait() (vector clocks: Fidge 1988, Mattern
// 1989). No timing takes part, so a missing wait is found every time. A simulated clock tells how long the queues would
// take.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "device/queue.h"
#include "ops/observed_ops.h"

namespace perigee::testing {

/// Of work that nothing keeps apart.
struct Race {
    std::string earlier, later;  ///< "all_gather on weights"
};

/// A place of the program that waits, by its return address, and what waited there for what.
struct WaitSite {
    void const* address = nullptr;
    std::string who;  ///< "compute for sums"
    auto operator<=>(WaitSite const&) const = default;
};

class OrderedDevice final : public Device {
  public:
    /// Waits at the site `dropped` are left out. Lanes copy a byte between device and host in `seconds_per_byte`.
    explicit OrderedDevice(void const* dropped = nullptr, double seconds_per_byte = 0);
    ~OrderedDevice() override;

    Queue& queue() override;
    Queue& lane(std::string const& name, Priority) override;
    void* allocate(size_t bytes) override { return host_->allocate(bytes); }
    void release(void* memory) noexcept override { host_->release(memory); }
    void copy(void* to, void const* from, size_t bytes) override;
    void* allocate_host(size_t bytes) override { return host_->allocate_host(bytes); }
    void release_host(void* memory) noexcept override { host_->release_host(memory); }
    void synchronize() override;
    std::string name() const override { return "ordered"; }
    bool is_host() const override { return true; }

    /// `queue` works on this memory; its clock moves on by `seconds`.
    void access(Queue& queue, ConstView memory, bool writes, std::string const& what);
    void spend(Queue& queue, double seconds);
    /// The host waits for the compute queue.
    void host_waits();

    std::vector<Race> const& races() const { return races_; }
    /// Where a wait has ordered what was not ordered before.
    std::set<WaitSite> const& sites() const { return sites_; }
    /// Lanes for which the compute queue has waited in another phase of a step than that of communication.
    std::set<std::string> const& uncounted() const { return uncounted_; }
    /// When everything queued so far would be done.
    double seconds() const;

  private:
    class OrderedQueue;
    struct Point;
    struct Access {
        int64_t count;  ///< of its queue
        std::byte const* begin;
        std::byte const* end;
        bool writes;
        std::string what;
    };
    OrderedQueue& queue_named(std::string const& name);

    std::unique_ptr<Device> host_ = make_host_device();
    std::vector<std::unique_ptr<OrderedQueue>> queues_;
    std::vector<Race> races_;
    std::set<WaitSite> sites_;
    std::set<std::string> uncounted_;
    void const* dropped_;
    double seconds_per_byte_;
    double host_seconds_ = 0;
};

/// Host operations on an OrderedDevice, each of which takes `seconds_per_byte` of what it works on.
class OrderedOps final : public ObservedOps {
  public:
    OrderedOps(OrderedDevice& device, std::unique_ptr<Ops> inner, double seconds_per_byte = 0)
        : ObservedOps(*inner), device_(&device), owned_(std::move(inner)), seconds_per_byte_(seconds_per_byte) {}
    void run(Operation const& operation) override;

  private:
    OrderedDevice* device_;
    std::unique_ptr<Ops> owned_;
    double seconds_per_byte_;
};

/// Groups of ranks over memory of the host, whose collectives tell the device what they work on, and take `delay`
/// seconds each. `collectives` counts those outside of the compute queue.
std::unique_ptr<GroupMaker> make_ordered_groups(HostComm& world, OrderedDevice& device, double delay,
                                                int64_t& collectives);

}  // namespace perigee::testing
