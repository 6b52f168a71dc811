#include "ops/gpu_limits.h"

#include "base/error.h"
#include "kernels/limits.h"

namespace perigee {

void check_gpu_norm(int64_t width) {
    int64_t const widest = kernels::rmsnorm_widest(width);
    if (width > widest)
        fail(Category::config, "RMSNorm over {} values: the GPU normalises at most {}{}", width, widest,
             width % 8 == 0 ? "" : " where the width is no multiple of 8");
}

void check_gpu_heads(int64_t size) {
    int64_t const widest = kernels::qkv_widest_head(size);
    if (size % 2 != 0 || size > widest)
        fail(Category::config, "heads of {} values: the GPU rotates even sizes up to {}", size, widest);
}

}  // namespace perigee
