// The time that a step would take on a kind of GPU: operations and collectives take as long as its rates say, in queues
// that wait for each other as those of a real step do.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "comm/host_board.h"
#include "config/device_rates.h"
#include "device/queue.h"
#include "ops/operations.h"

namespace perigee {

/// Seconds of an operation. With null rates everything takes no time.
double operation_seconds(Operation const& operation, DeviceRates const* rates);

/// How the ranks of a group lie: `stride` ranks of the job apart, where neighbours fill one host after another.
struct GroupPlace {
    int ranks = 1;
    int stride = 1;
};
/// Seconds of a collective to which each rank brings so many bytes: over a ring, or where ranks lie in several hosts
/// over a tree if that is faster; all_to_all, which has neither, rank to rank.
double collective_seconds(Collective collective, int64_t brought, GroupPlace const& place, DeviceRates const* rates);

/// By how many standard deviations the slowest of n ranks is behind the mean.
double slowest_of(int ranks);

/// Times of a step, in seconds.
struct StepTime {
    double step = 0;
    double products = 0, attention = 0, other = 0;  ///< of the compute queue's work
    std::map<std::string, double> exposed;          ///< by axis, or "host": for what the compute queue waited
    double beside = 0;                              ///< of collectives beside the compute queue's work

    StepTime& add(StepTime const& x, double factor);
};

/// Queues with clocks. As those of a device whose every call has done its work when it returns, while no time passes.
class ClockedQueues {
  public:
    ClockedQueues(Device& device, DeviceRates const* rates);
    ~ClockedQueues();
    Queue& at(std::string const& name);
    size_t workspace_bytes() const;  ///< of all lanes

    void run(Operation const& operation);
    void collective(Queue& queue, Axis axis, Collective collective, int64_t brought, int ranks, int stride);
    /// What has passed since the last call.
    StepTime take();

  private:
    class Clocked;
    struct Point;
    Clocked& compute();

    Device* device_;
    DeviceRates const* rates_;
    std::map<std::string, std::unique_ptr<Clocked>> queues_;
    StepTime now_;
    double begin_ = 0;
    double lanes_ = 0;   ///< seconds of collectives beside the compute queue, exposed or not
    double waited_ = 0;  ///< of them, exposed
};

}  // namespace perigee
