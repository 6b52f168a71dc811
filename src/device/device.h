// Where tensors live and are worked on. A Device hands out memory and queues (device/queue.h); the CPU is always there,
// a CUDA GPU only in a build with CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/in_flight.h"
#include "device/phase_clock.h"
#include "device/trace.h"

namespace perigee {

class Queue;

/// Of a lane's work, where there is a choice.
enum class Priority { low, normal, high };

class Device {
  public:
    virtual ~Device() = default;

    /// Where operations are queued.
    virtual Queue& queue() = 0;
    /// A queue beside it, made when it is first asked for.
    virtual Queue& lane(std::string const& name, Priority priority = Priority::high) = 0;
    /// Memory of this device that lanes work on.
    InFlight& in_flight() { return in_flight_; }
    PhaseClock& phases() { return phases_; }
    Trace& trace() { return trace_; }
    /// Ranges of the calling thread on the timeline of a profiler that watches the process (NVTX); they nest.
    virtual void begin_range(char const* /*name*/) noexcept {}
    virtual void end_range() noexcept {}
    /// Makes queue() wait for all work on lanes that uses these bytes. They may then be used in queue(), or freed.
    void settle(void const* memory, size_t bytes) noexcept;

    /// At least 256-byte aligned and never null; throws OutOfMemory when memory is exhausted.
    virtual void* allocate(size_t bytes) = 0;
    virtual void release(void* memory) noexcept = 0;
    /// Copies between memory of this device and of the host, whichever way the pointers say: after all work that was
    /// queued in queue() before, and waits for it.
    virtual void copy(void* to, void const* from, size_t bytes) = 0;
    /// Host memory that this device copies from and to at full speed (pinned, for a GPU). Released by release_host().
    virtual void* allocate_host(size_t bytes) = 0;
    virtual void release_host(void* memory) noexcept = 0;
    /// Waits for all work queued so far, in every queue.
    virtual void synchronize() = 0;
    /// Bytes of a GPU's memory that are taken, by this process or another; 0 for the host's memory.
    virtual int64_t used_bytes() const { return 0; }
    /// Bytes of a GPU's memory; 0 for the host's, see device/host_memory.h.
    virtual int64_t total_bytes() const { return 0; }
    /// "cpu", or the GPU's name.
    virtual std::string name() const = 0;
    virtual bool is_host() const = 0;

  private:
    InFlight in_flight_;
    PhaseClock phases_;
    Trace trace_;
};

std::unique_ptr<Device> make_host_device();
/// `index` counts the GPUs this process sees. Throws Category::config where the build or the machine has none.
std::unique_ptr<Device> make_cuda_device(int index);
/// Number of usable GPUs; 0 in a build without CUDA.
int cuda_device_count();
/// Of such a GPU's compute capability; 0 where it is not there.
int cuda_compute_major(int index);
inline constexpr int kHopperMajor = 9;

enum class Memory { device, host };

/// Memory from a device, released with its owner, when no lane works on it any more. The device must outlive it.
template <Memory kind>
class BasicBuffer {
  public:
    BasicBuffer() = default;
    BasicBuffer(Device& device, size_t bytes)
        : device_(&device),
          data_(kind == Memory::host ? device.allocate_host(bytes) : device.allocate(bytes)),
          bytes_(bytes) {}
    /// Memory that `owner` points to and releases.
    BasicBuffer(Device& device, std::shared_ptr<void> owner, size_t bytes)
        : device_(&device), data_(owner.get()), bytes_(bytes), owner_(std::move(owner)) {}
    BasicBuffer(BasicBuffer&& other) noexcept { swap(other); }
    BasicBuffer& operator=(BasicBuffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~BasicBuffer() {
        if (data_ == nullptr) return;
        device_->settle(data_, bytes_);
        if (owner_ != nullptr) return;
        if constexpr (kind == Memory::host)
            device_->release_host(data_);
        else
            device_->release(data_);
    }
    void* data() const noexcept { return data_; }
    size_t bytes() const noexcept { return bytes_; }

  private:
    void swap(BasicBuffer& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        owner_.swap(other.owner_);
    }
    Device* device_ = nullptr;
    void* data_ = nullptr;
    size_t bytes_ = 0;
    std::shared_ptr<void> owner_;
};
using Buffer = BasicBuffer<Memory::device>;
using HostBuffer = BasicBuffer<Memory::host>;  ///< from Device::allocate_host

}  // namespace perigee
