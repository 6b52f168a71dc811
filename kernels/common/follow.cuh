// A kernel that begins while the one before it in its stream ends (programmatic dependent launch, in kernels built for
// Hopper or later): its launch costs nothing, and wait_for_previous() holds it until all that came before is done and
// visible.
#pragma once

#include <type_traits>

#include "kernels/common/built_for.h"
#include "kernels/common/launch.h"

namespace perigee::kernels {

/// In the kernel that is launched by follow(), before it reads or writes what others do.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// In the kernel before it, by every block: its blocks may take what room there is from now on.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// The attribute of a launch that does not wait for the kernel before it.
inline cudaLaunchAttribute early_launch() {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    return attribute;
}

/// Launches a kernel that calls wait_for_previous(). Its thread blocks become resident while the grid before it drains;
/// a grid that does not fill the GPU may crowd on the multiprocessors that are free first. Errors say `name`.
template <class... Args>
void follow(char const* name, void (*kernel)(Args...), dim3 blocks, dim3 threads, size_t shared, cudaStream_t stream,
            std::type_identity_t<Args>... args) {
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config{};
    config.gridDim = blocks, config.blockDim = threads;
    config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &early, config.numAttrs = built_for() >= BuiltFor::early ? 1 : 0;
    check_cuda(cudaLaunchKernelEx(&config, kernel, args...), name);
}

}  // namespace perigee::kernels
