// Which kernels a GPU gets, and what is slower for it than elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/device.h"
#include "kernels/common/built_for.h"

namespace perigee {

struct GpuKernels {
    int capability = 0;  ///< of the GPU, 90 for 9.0
    kernels::BuiltFor built_for = kernels::BuiltFor::ampere;
    int64_t shared_bytes = 0;  ///< that a thread block may have
    bool cudnn = false;        ///< the build uses cuDNN
};

/// Nothing for a device that is no GPU.
std::optional<GpuKernels> gpu_kernels(Device& device);

/// "for compute capability 9.0a on a GPU of 9.0, 227 KiB of shared memory a block", then what is slower or missing.
std::string to_string(GpuKernels const& kernels);

}  // namespace perigee
