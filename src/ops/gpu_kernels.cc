#include "ops/gpu_kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace perigee {

std::string to_string(GpuKernels const& k) {
    using kernels::BuiltFor;
    constexpr int64_t kRoomOfBackward = 217 << 10, kRoomOfSums = 161 << 10;
    std::vector<std::string> slower;
    if (k.built_for != BuiltFor::hopper)
        slower.push_back(k.capability == 90 ? "MoBA, as this build has no code for 9.0a (CMAKE_CUDA_ARCHITECTURES=90a)"
                                            : "MoBA, by mma.sync instead of wgmma");
    if (!k.cudnn)
        slower.push_back(k.built_for == BuiltFor::hopper
                             ? "full attention with other heads than 64, 96 and 128, without cuDNN"
                             : "full attention, without cuDNN");
    if (k.shared_bytes < kRoomOfSums)
        slower.push_back("the backward of RMSNorm, of QKV with bias or norms, and of the embedding, in less memory");
    else if (k.shared_bytes < kRoomOfBackward)
        slower.push_back("the backward of RMSNorm, in less memory");
    char const* const code = k.built_for == BuiltFor::hopper ? "9.0a" : k.built_for == BuiltFor::early ? "9.0" : "8.0";
    return fmt::format("for compute capability {} on a GPU of {}.{}, {} KiB of shared memory a block{}{}", code,
                       k.capability / 10, k.capability % 10, k.shared_bytes >> 10,
                       slower.empty() ? "" : "; slower here: ", fmt::join(slower, "; "));
}

}  // namespace perigee
