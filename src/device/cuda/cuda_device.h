// What the CUDA side of the upper layers needs of a GPU: the streams of its queues, and one way to turn an error code
// into an Error.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "device/cuda/cuda_queue.h"
#include "device/device.h"

namespace perigee {

/// Throws Category::internal naming `call` unless `code` is success.
void check_cuda(cudaError_t code, char const* call);

class CudaDevice final : public Device {
  public:
    explicit CudaDevice(int index);
    ~CudaDevice() override;

    Queue& queue() override { return queue_; }
    Queue& lane(std::string const& name, Priority priority) override;
    void* allocate(size_t bytes) override;
    void release(void* memory) noexcept override;
    void copy(void* to, void const* from, size_t bytes) override;
    void* allocate_host(size_t bytes) override;
    void release_host(void* memory) noexcept override;
    void synchronize() override;
    int64_t used_bytes() const override;
    int64_t total_bytes() const override;
    std::string name() const override { return name_; }
    void begin_range(char const* name) noexcept override;
    void end_range() noexcept override;
    bool is_host() const override { return false; }

    /// Of queue().
    cudaStream_t stream() const { return queue_.stream(); }
    void before_use_of_queue(std::function<void()> queue_held) { queue_.before_use(std::move(queue_held)); }
    /// The current GPU is a property of the calling thread: this one from now on.
    void use() const { check_cuda(cudaSetDevice(index_), "cudaSetDevice"); }

  private:
    int index_;
    std::string name_;
    std::shared_ptr<CudaEvents> events_;
    CudaQueue queue_;
    std::map<std::string, CudaQueue> lanes_;
};

}  // namespace perigee
