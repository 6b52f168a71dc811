// A queue of a GPU is a stream, an event one of CUDA's, taken from a pool: without timing, unless it is a stamp.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/queue.h"

namespace perigee {

/// Events of one GPU, used over and over. Any thread may call it.
class CudaEvents : public std::enable_shared_from_this<CudaEvents> {
  public:
    CudaEvents() = default;
    ~CudaEvents();
    CudaEvents(CudaEvents const&) = delete;
    CudaEvents& operator=(CudaEvents const&) = delete;

    /// The end of what is queued in `stream`.
    Event record(cudaStream_t stream);
    /// The same, with the moment at which it is reached.
    Event stamp(cudaStream_t stream);
    class Point;

  private:
    cudaEvent_t take(bool timed);
    void give_back(cudaEvent_t event, bool timed) noexcept;

    std::mutex mutex_;
    std::array<std::vector<cudaEvent_t>, 2> idle_;  ///< without and with timing
};

class CudaQueue final : public Queue {
  public:
    CudaQueue(Device& device, int index, std::string name, Priority priority, std::shared_ptr<CudaEvents> events);
    ~CudaQueue() override;

    Event record() override;
    Event stamp() override;
    void wait(Event const& event) override;
    void copy(void* to, void const* from, size_t bytes) override;
    void call(std::function<void()> const& work) override;
    void synchronize() override;

    /// Called before anything is queued here, recorded or waited for, whoever does it: somebody holds work back that
    /// comes first. An empty function ends that.
    void before_use(std::function<void()> queue_held) { queue_held_ = std::move(queue_held); }
    /// For a call that queues work at once.
    cudaStream_t stream() const {
        if (queue_held_) queue_held_();
        return stream_;
    }

  private:
    void use() const;  ///< this GPU, for what comes next on this thread

    int index_;
    std::shared_ptr<CudaEvents> events_;
    cudaStream_t stream_ = nullptr;
    std::function<void()> queue_held_;
};

}  // namespace perigee
