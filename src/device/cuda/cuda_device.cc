// GPUs through the CUDA runtime. Linked in place of no_cuda.cc when the build has CUDA.
#include "device/cuda/cuda_device.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>

#include "base/error.h"

namespace perigee {

void check_cuda(cudaError_t code, char const* call) {
    if (code == cudaSuccess) return;
    cudaGetLastError();  // otherwise the next call would report this error again
    if (code == cudaErrorMemoryAllocation) throw OutOfMemory(fmt::format("out of memory: {} failed", call));
    fail(Category::internal, "{} failed: {}", call, cudaGetErrorString(code));
}

CudaDevice::CudaDevice(int index)
    : index_(index),
      events_(std::make_shared<CudaEvents>()),
      queue_(*this, index, "compute", Priority::normal, events_) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    name_ = properties.name;
}

CudaDevice::~CudaDevice() = default;

Queue& CudaDevice::lane(std::string const& name, Priority priority) {
    return lanes_.try_emplace(name, *this, index_, name, priority, events_).first->second;
}

void* CudaDevice::allocate(size_t bytes) {
    use();
    void* memory = nullptr;
    cudaError_t const code = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        throw OutOfMemory(fmt::format("out of memory: {} bytes on {} (GPU {}), of whose {} bytes {} are free", bytes,
                                      name(), index_, total, free));
    }
    check_cuda(code, "cudaMalloc");
    return memory;
}

int64_t CudaDevice::used_bytes() const {
    use();
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(total - free);
}

int64_t CudaDevice::total_bytes() const {
    use();
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(total);
}

void CudaDevice::release(void* memory) noexcept { cudaFree(memory); }

void CudaDevice::begin_range(char const* name) noexcept { nvtxRangePushA(name); }
void CudaDevice::end_range() noexcept { nvtxRangePop(); }

void CudaDevice::copy(void* to, void const* from, size_t bytes) {
    queue_.copy(to, from, bytes);
    queue_.synchronize();
}

void* CudaDevice::allocate_host(size_t bytes) {
    use();
    void* memory = nullptr;
    check_cuda(cudaMallocHost(&memory, std::max<size_t>(bytes, 1)), "cudaMallocHost");
    return memory;
}

void CudaDevice::release_host(void* memory) noexcept { cudaFreeHost(memory); }

void CudaDevice::synchronize() {
    queue_.synchronize();
    for (auto& [name, lane] : lanes_) lane.synchronize();
}

int cuda_device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
}

int cuda_compute_major(int index) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) == cudaSuccess) return major;
    cudaGetLastError();
    return 0;
}

std::unique_ptr<Device> make_cuda_device(int index) {
    int count = 0;
    cudaError_t const code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
        cudaGetLastError();
        fail(Category::config, "no GPU can be used: {}", cudaGetErrorString(code));
    }
    if (index < 0 || index >= count) fail(Category::config, "GPU {} of the {} this process sees", index, count);
    return std::make_unique<CudaDevice>(index);
}

}  // namespace perigee
