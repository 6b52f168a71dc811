// Linked in place of ops/cuda/ when the build has no CUDA.
#include "base/error.h"
#include "ops/gpu_attention.h"
#include "ops/gpu_kernels.h"
#include "ops/ops.h"

namespace perigee {

std::unique_ptr<Ops> make_cuda_ops(Device&, CudaOptions const&) {
    fail(Category::config, "this perigee was built without CUDA: use `device: cpu`, or build the `cuda` preset");
}

bool build_uses_cudnn() { return true; }

std::optional<GpuKernels> gpu_kernels(Device&) { return std::nullopt; }

}  // namespace perigee
