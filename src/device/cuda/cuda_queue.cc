#include "device/cuda/cuda_queue.h"

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace perigee {

class CudaEvents::Point final : public Event::Point {
  public:
    Point(std::shared_ptr<CudaEvents> events, cudaEvent_t event) : events_(std::move(events)), event_(event) {}
    // What a queue waits for was noted when it was told to wait: the event may be recorded again at once.
    ~Point() override { events_->give_back(event_); }
    Point(Point const&) = delete;
    Point& operator=(Point const&) = delete;

    /// A GPU that failed reaches nothing any more; whoever waits for it says so.
    bool reached() const noexcept override { return cudaEventQuery(event_) == cudaSuccess; }
    cudaEvent_t event() const { return event_; }

  private:
    std::shared_ptr<CudaEvents> events_;
    cudaEvent_t event_;
};

CudaEvents::~CudaEvents() {
    for (cudaEvent_t const event : idle_) cudaEventDestroy(event);
}

cudaEvent_t CudaEvents::take() {
    {
        std::scoped_lock const lock(mutex_);
        if (!idle_.empty()) {
            cudaEvent_t const event = idle_.back();
            idle_.pop_back();
            return event;
        }
    }
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return event;
}

void CudaEvents::give_back(cudaEvent_t event) noexcept {
    std::scoped_lock const lock(mutex_);
    try {
        idle_.push_back(event);
    } catch (std::exception const&) {
        cudaEventDestroy(event);
    }
}

Event CudaEvents::record(cudaStream_t stream) {
    auto const point = std::make_shared<Point>(shared_from_this(), take());
    check_cuda(cudaEventRecord(point->event(), stream), "cudaEventRecord");
    return Event(point);
}

CudaQueue::CudaQueue(Device& device, int index, std::string name, Priority priority, std::shared_ptr<CudaEvents> events)
    : Queue(device, std::move(name)), index_(index), events_(std::move(events)) {
    use();
    int low = 0, high = 0;  // smaller numbers go first
    check_cuda(cudaDeviceGetStreamPriorityRange(&low, &high), "cudaDeviceGetStreamPriorityRange");
    int const number = priority == Priority::high ? high : priority == Priority::low ? low : 0;
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, number), "cudaStreamCreateWithPriority");
}

CudaQueue::~CudaQueue() { cudaStreamDestroy(stream_); }

void CudaQueue::use() const { check_cuda(cudaSetDevice(index_), "cudaSetDevice"); }

Event CudaQueue::record() {
    use();
    return events_->record(stream_);
}

void CudaQueue::wait(Event const& event) {
    if (event.point() == nullptr) return;
    auto const* const point = dynamic_cast<CudaEvents::Point const*>(event.point());
    PERIGEE_CHECK(point != nullptr, "queue {} of a GPU waits for another device", name());
    use();
    check_cuda(cudaStreamWaitEvent(stream_, point->event(), 0), "cudaStreamWaitEvent");
}

void CudaQueue::copy(void* to, void const* from, size_t bytes) {
    use();
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
}

void CudaQueue::call(std::function<void()> const& work) {
    synchronize();
    work();
}

void CudaQueue::synchronize() {
    use();
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

}  // namespace perigee
