#include "ops/gpu_kernels.h"

#include "device/cuda/cuda_device.h"
#include "kernels/common/launch.h"
#include "ops/gpu_attention.h"

namespace perigee {

std::optional<GpuKernels> gpu_kernels(Device& device) {
    if (device.is_host()) return std::nullopt;
    int const major = kernels::attribute(cudaDevAttrComputeCapabilityMajor),
              minor = kernels::attribute(cudaDevAttrComputeCapabilityMinor);
    return GpuKernels{.capability = 10 * major + minor,
                      .built_for = kernels::built_for(),
                      .shared_bytes = kernels::shared_of_block(),
                      .cudnn = build_uses_cudnn()};
}

}  // namespace perigee
