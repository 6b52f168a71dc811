// Host side of TMA: maps that tell it how a tensor lies in global memory. Kernels take them by value, as
// `__grid_constant__ CUtensorMap const`.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace perigee::hopper {

/// A map of bf16 [rows, heads, columns], whose copies bring [box_rows, box_heads, 64 columns] as one panel in 128-byte
/// swizzle (box rows outermost). `base` at a multiple of 16 bytes; columns a multiple of 8, those that a panel has
/// beyond them arrive as zeros; box_rows at most 256. Throws what check_cuda throws where the driver refuses.
CUtensorMap rows_map(void const* base, int64_t rows, int64_t heads, int64_t columns, int box_rows, int box_heads = 1);

}  // namespace perigee::hopper
