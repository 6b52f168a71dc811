// Small products through every path of kernels/hopper, for its tests: rows gathered or brought by TMA into
// swizzled tiles, factors in shared memory and in registers, along columns and along rows.
#pragma once

#include <driver_types.h>

#include <cstdint>

#include "base/bf16.h"

namespace perigee::testing {

/// All on the device. Row i of A is row `gather[i]` of `a` (zeros for -1), 128 rows. B and V are the 128 rows from
/// `first` on of head `head` of `b` and `v`; rows beyond `rows` are zeros.
struct HopperProbe {
    int64_t head_dim = 0;             ///< 64 or 128
    bf16 const* a = nullptr;          ///< [any, head_dim]
    int32_t const* gather = nullptr;  ///< [128]
    bf16 const* b = nullptr;          ///< [rows, heads, head_dim]
    bf16 const* v = nullptr;          ///< the same
    int64_t rows = 0, heads = 0, first = 0, head = 0;
    float* scores = nullptr;      ///< [128, 128] = A B^T
    float* outputs = nullptr;     ///< [128, head_dim] = bf16(scores) V
    float* transposed = nullptr;  ///< [head_dim, head_dim] = A^T V
};
/// Where kernels are BuiltFor::hopper.
void run_hopper_probe(HopperProbe const& probe, cudaStream_t stream);

}  // namespace perigee::testing
