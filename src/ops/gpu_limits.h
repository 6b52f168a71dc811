// Sizes that the kernels of a GPU take. Needs no CUDA: `perigee check` asks too.
#pragma once

#include <cstdint>

namespace perigee {

/// Throws Category::config where RMSNorm does not take rows of `width` values.
void check_gpu_norm(int64_t width);
/// Throws Category::config where heads of `size` values cannot be rotated.
void check_gpu_heads(int64_t size);

}  // namespace perigee
