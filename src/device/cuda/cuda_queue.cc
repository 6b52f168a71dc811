#include "device/cuda/cuda_queue.h"

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace perigee {

class CudaEvents::Point final : public Event::Point {
  public:
    Point(std::shared_ptr<CudaEvents> events, cudaEvent_t event, bool timed)
        : events_(std::move(events)), event_(event), timed_(timed) {}
    // What a queue waits for was noted when it was told to wait: the event may be recorded again at once.
    ~Point() override { events_->give_back(event_, timed_); }
    Point(Point const&) = delete;
    Point& operator=(Point const&) = delete;

    /// A GPU that failed reaches nothing any more; whoever waits for it says so.
    bool reached() const noexcept override { return cudaEventQuery(event_) == cudaSuccess; }
    double seconds_since(Event::Point const& earlier) const override {
        auto const* const before = dynamic_cast<Point const*>(&earlier);
        float milliseconds = 0;
        if (before == nullptr || !timed_ || !before->timed_) return 0;
        if (cudaEventElapsedTime(&milliseconds, before->event_, event_) == cudaSuccess) return 1e-3 * milliseconds;
        cudaGetLastError();  // one of them was not recorded yet
        return 0;
    }
    cudaEvent_t event() const { return event_; }

  private:
    std::shared_ptr<CudaEvents> events_;
    cudaEvent_t event_;
    bool timed_;
};

CudaEvents::~CudaEvents() {
    for (auto const& events : idle_)
        for (cudaEvent_t const event : events) cudaEventDestroy(event);
}

cudaEvent_t CudaEvents::take(bool timed) {
    {
        std::scoped_lock const lock(mutex_);
        auto& idle = idle_.at(timed ? 1 : 0);
        if (!idle.empty()) {
            cudaEvent_t const event = idle.back();
            idle.pop_back();
            return event;
        }
    }
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
    return event;
}

void CudaEvents::give_back(cudaEvent_t event, bool timed) noexcept {
    std::scoped_lock const lock(mutex_);
    try {
        idle_.at(timed ? 1 : 0).push_back(event);
    } catch (std::exception const&) {
        cudaEventDestroy(event);
    }
}

Event CudaEvents::record(cudaStream_t stream) {
    auto const point = std::make_shared<Point>(shared_from_this(), take(false), false);
    check_cuda(cudaEventRecord(point->event(), stream), "cudaEventRecord");
    return Event(point);
}

Event CudaEvents::stamp(cudaStream_t stream) {
    auto const point = std::make_shared<Point>(shared_from_this(), take(true), true);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
    // Within a graph the event is recorded each time that the graph runs, for those outside of it.
    unsigned const flags = capture == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
    check_cuda(cudaEventRecordWithFlags(point->event(), stream, flags), "cudaEventRecordWithFlags");
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

void CudaQueue::use() const {
    check_cuda(cudaSetDevice(index_), "cudaSetDevice");
    if (queue_held_) queue_held_();
}

Event CudaQueue::record() {
    use();
    return events_->record(stream_);
}

Event CudaQueue::stamp() {
    use();
    return events_->stamp(stream_);
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
