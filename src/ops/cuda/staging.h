// Uploads that do not wait: the values are copied to a ring of pinned memory, from where the GPU fetches them when its
// queue gets there. The caller's memory is free again at once.
#pragma once

#include <array>
#include <cstddef>

#include "device/cuda/cuda_device.h"

namespace perigee {

/// One thread at a time may call it; it waits only for a slot of the ring.
class Staging {
  public:
    explicit Staging(CudaDevice& device);
    ~Staging();
    Staging(Staging const&) = delete;
    Staging& operator=(Staging const&) = delete;

    void upload(void* to, void const* from, size_t bytes);

  private:
    static constexpr size_t kSlots = 64;
    /// Pinned memory, and when the GPU has read it.
    struct Slot {
        HostBuffer memory;
        cudaEvent_t read = nullptr;
        bool in_use = false;
    };

    /// One whose memory is free and large enough.
    Slot& slot_for(size_t bytes);

    CudaDevice& device_;
    std::array<Slot, kSlots> slots_;
    size_t next_ = 0;  ///< the slot to wait for, and to enlarge if need be, when no free one is large enough
};

}  // namespace perigee
