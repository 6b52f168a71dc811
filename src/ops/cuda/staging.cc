#include "ops/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace perigee {

namespace {
constexpr size_t kSmallestSlot = size_t{64} << 10;
}

Staging::Staging(CudaDevice& device) : device_(device) {
    for (Slot& slot : slots_)
        check_cuda(cudaEventCreateWithFlags(&slot.read, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

Staging::~Staging() {
    for (Slot& slot : slots_) {
        if (slot.in_use) cudaEventSynchronize(slot.read);
        cudaEventDestroy(slot.read);
    }
}

/// Memory is taken and freed as rarely as can be: both synchronise the device.
Staging::Slot& Staging::slot_for(size_t bytes) {
    for (Slot& slot : slots_) {
        if (slot.memory.bytes() < bytes) continue;
        if (!slot.in_use || cudaEventQuery(slot.read) == cudaSuccess) return slot;
        cudaGetLastError();  // "not ready" is no error
    }
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % kSlots;
    if (slot.in_use) check_cuda(cudaEventSynchronize(slot.read), "cudaEventSynchronize");
    if (slot.memory.bytes() < bytes) {
        slot.memory = {};
        slot.memory = HostBuffer(device_, std::max(bytes, kSmallestSlot));
    }
    return slot;
}

void Staging::upload(void* to, void const* from, size_t bytes) {
    if (bytes == 0) return;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(device_.stream(), &capturing), "cudaStreamIsCapturing");
    // A graph would fetch again what the slot holds by then.
    if (capturing != cudaStreamCaptureStatusNone) fail(Category::internal, "an upload within a CUDA graph");
    Slot& slot = slot_for(bytes);
    std::memcpy(slot.memory.data(), from, bytes);
    // Moments may lie in pinned memory of the host (optimizer.offload).
    check_cuda(cudaMemcpyAsync(to, slot.memory.data(), bytes, cudaMemcpyDefault, device_.stream()), "cudaMemcpyAsync");
    check_cuda(cudaEventRecord(slot.read, device_.stream()), "cudaEventRecord");
    slot.in_use = true;
}

}  // namespace perigee
