#include "ops/gpu_kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace perigee {

std::string to_string(GpuKernels const& k) {
    using kernels::BuiltFor;
    constexpr int64_t kRoomOfRmsNorm = 217 << 10;  // of its backward
    std::vector<std::string> slower;
    if (k.built_for != BuiltFor::hopper)
        slower.push_back(k.capability == 90 ? "MoBA, as this build has no code for 9.0a (CMAKE_CUDA_ARCHITECTURES=90a)"
                                            : "MoBA, by mma.sync instead of wgmma");
    if (!k.cudnn) slower.push_back("full attention, without cuDNN");
    char const* const missing = k.shared_bytes < kRoomOfRmsNorm
                                    ? "; training is not supported here: the backward of RMSNorm takes up to 216 KiB"
                                    : "";
    char const* const code = k.built_for == BuiltFor::hopper ? "9.0a" : "8.0";
    return fmt::format("for compute capability {} on a GPU of {}.{}, {} KiB of shared memory a block{}{}{}", code,
                       k.capability / 10, k.capability % 10, k.shared_bytes >> 10,
                       slower.empty() ? "" : "; slower here: ", fmt::join(slower, "; "), missing);
}

}  // namespace perigee
