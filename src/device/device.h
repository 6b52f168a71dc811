// Where tensors live. A Device hands out memory; the CPU is always there, a CUDA GPU only in a build with CUDA.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace perigee {

class Device {
  public:
    virtual ~Device() = default;
    /// At least 256-byte aligned and never null; throws Category::internal when memory is exhausted.
    virtual void* allocate(size_t bytes) = 0;
    virtual void release(void* memory) noexcept = 0;
    /// Copies between memory of this device and of the host, whichever way the pointers say, and waits for it.
    virtual void copy(void* to, void const* from, size_t bytes) = 0;
    /// "cpu", or the GPU's name.
    virtual std::string name() const = 0;
    virtual bool is_host() const = 0;
};

std::unique_ptr<Device> make_host_device();
/// `index` counts the GPUs this process sees. Throws Category::config where the build or the machine has none.
std::unique_ptr<Device> make_cuda_device(int index);
/// Number of usable GPUs; 0 in a build without CUDA.
int cuda_device_count();

/// Memory of a device, released with its owner. The device must outlive it.
class Buffer {
  public:
    Buffer() = default;
    Buffer(Device& device, size_t bytes) : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Buffer() {
        if (data_ != nullptr) device_->release(data_);
    }
    void* data() const noexcept { return data_; }
    size_t bytes() const noexcept { return bytes_; }

  private:
    void swap(Buffer& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }
    Device* device_ = nullptr;
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace perigee
