#include <map>

#include "device/cuda/cuda_device.h"
#include "device/pace.h"

namespace perigee {

namespace {

using Nanoseconds = unsigned long long;

__device__ Nanoseconds now() {
    Nanoseconds time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__global__ void note_begin(Nanoseconds* begin) { *begin = now(); }

__global__ void wait_since(Nanoseconds const* begin, Nanoseconds span) {
    while (now() - *begin < span) __nanosleep(500);
}

class CudaPace final : public Pace {
  public:
    explicit CudaPace(CudaDevice& device) : device_(&device) {}

    void begin(Queue& queue) override {
        device_->use();
        note_begin<<<1, 1, 0, stream(queue)>>>(moment(queue));
        check_cuda(cudaGetLastError(), "note_begin");
    }
    void end(Queue& queue, double seconds) override {
        device_->use();
        wait_since<<<1, 1, 0, stream(queue)>>>(moment(queue), static_cast<Nanoseconds>(1e9 * seconds));
        check_cuda(cudaGetLastError(), "wait_since");
    }

  private:
    static cudaStream_t stream(Queue& queue) { return dynamic_cast<CudaQueue&>(queue).stream(); }
    /// When the queue last came to its begin(), in memory of the GPU.
    Nanoseconds* moment(Queue& queue) {
        auto const [at, made] = moments_.try_emplace(&queue);
        if (made) at->second = Buffer(*device_, sizeof(Nanoseconds));
        return static_cast<Nanoseconds*>(at->second.data());
    }

    CudaDevice* device_;
    std::map<Queue*, Buffer> moments_;
};

}  // namespace

std::unique_ptr<Pace> detail::make_cuda_pace(Device& device) {
    return std::make_unique<CudaPace>(dynamic_cast<CudaDevice&>(device));
}

}  // namespace perigee
