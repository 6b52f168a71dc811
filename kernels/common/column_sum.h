// The second stage of a sum over rows: blocks have left one row of partial sums each, and this adds the rows up in a
// fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace perigee::kernels {

/// accumulated[c] += the sum over r of partials[r, c]; all f32, partials [rows, columns].
void column_sum(float* accumulated, float const* partials, int64_t rows, int64_t columns, cudaStream_t stream);

}  // namespace perigee::kernels
