// Sizes that GPU kernels take, for those who ask without CUDA as well.
#pragma once

#include <cstdint>

namespace perigee::kernels {

/// Values of the widest row that RMSNorm keeps in the registers of a block.
constexpr int64_t rmsnorm_widest(int64_t width) { return width % 8 == 0 ? 16384 : 4096; }

/// Values of the widest head that is rotated; heads are of even sizes.
constexpr int64_t qkv_widest_head(int64_t size) { return size % 16 == 0 ? 512 : 256; }

/// Whether own attention kernels, and those of decoding, take heads of this size.
constexpr bool attention_takes_head(int64_t size) { return size == 32 || size == 64 || size == 96 || size == 128; }

}  // namespace perigee::kernels
