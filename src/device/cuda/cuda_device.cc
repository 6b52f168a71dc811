// GPUs through the CUDA runtime. Linked in place of no_cuda.cc when the build has CUDA.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/error.h"
#include "device/device.h"

namespace perigee {

namespace {

void check_cuda(cudaError_t code, char const* call) {
    if (code == cudaSuccess) return;
    cudaGetLastError();  // otherwise the next call would report this error again
    fail(Category::internal, "{} failed: {}", call, cudaGetErrorString(code));
}

class CudaDevice final : public Device {
  public:
    explicit CudaDevice(int index) : index_(index) {
        cudaDeviceProp properties{};
        check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
        name_ = properties.name;
    }
    void* allocate(size_t bytes) override {
        use();
        void* memory = nullptr;
        cudaError_t const code = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
        if (code == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            size_t free = 0, total = 0;
            cudaMemGetInfo(&free, &total);
            fail(Category::internal, "out of memory: {} bytes on {} (GPU {}), of whose {} bytes {} are free", bytes,
                 name_, index_, total, free);
        }
        check_cuda(code, "cudaMalloc");
        return memory;
    }
    void release(void* memory) noexcept override { cudaFree(memory); }
    void copy(void* to, void const* from, size_t bytes) override {
        use();
        check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
    }
    std::string name() const override { return name_; }
    bool is_host() const override { return false; }

  private:
    /// The current GPU is a property of the calling thread.
    void use() const { check_cuda(cudaSetDevice(index_), "cudaSetDevice"); }

    int index_;
    std::string name_;
};

}  // namespace

int cuda_device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
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
