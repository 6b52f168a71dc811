// The second stage of sums over rows: blocks have left rows of partial sums, and this adds the rows up in a fixed
// order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>

namespace perigee::kernels {

/// accumulated[c] += the sum over r of partials[r, c]; all f32, partials [rows, columns].
struct ColumnSum {
    float* accumulated;  ///< null: nothing to add
    float const* partials;
    int64_t rows;
    int64_t columns;
};
/// Up to kMostColumnSums, of which no two are added to the same memory, in one launch.
constexpr int kMostColumnSums = 3;
void add_columns(std::initializer_list<ColumnSum> sums, cudaStream_t stream);

}  // namespace perigee::kernels
