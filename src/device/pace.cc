#include "device/pace.h"

#include <chrono>
#include <map>
#include <thread>

namespace perigee {

namespace {

using Clock = std::chrono::steady_clock;

class HostPace final : public Pace {
  public:
    void begin(Queue& queue) override { begins_[&queue] = Clock::now(); }
    void end(Queue& queue, double seconds) override {
        auto const span = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
        std::this_thread::sleep_until(begins_.at(&queue) + span);
    }

  private:
    std::map<Queue*, Clock::time_point> begins_;
};

}  // namespace

std::unique_ptr<Pace> make_pace(Device& device) {
    if (device.is_host()) return std::make_unique<HostPace>();
    return detail::make_cuda_pace(device);
}

}  // namespace perigee
