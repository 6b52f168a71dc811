#include "kernels/common/column_sum.h"

#include <algorithm>
#include <array>

#include "kernels/common/follow.cuh"
#include "kernels/common/launch.h"

namespace perigee::kernels {

namespace {

constexpr int kColumns = 8;  // 32 bytes, the smallest piece that memory moves: many blocks even for narrow sums
constexpr int kStrands = 64;

using ColumnSums = std::array<ColumnSum, kMostColumnSums>;

__global__ void __launch_bounds__(kColumns* kStrands) sum_columns(ColumnSums const sums) {
    __shared__ float strands[kStrands][kColumns + 1];
    auto const& [accumulated, partials, rows, columns] = sums[blockIdx.y];
    int64_t const column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
    wait_for_previous();
    let_next_begin();
    float const before = threadIdx.y == 0 && column < columns ? accumulated[column] : 0;
    float sum = 0;
    if (column < columns) {
#pragma unroll 8
        for (int64_t row = threadIdx.y; row < rows; row += kStrands) sum += partials[row * columns + column];
    }
    strands[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= columns) return;
    for (int i = 1; i < kStrands; ++i) sum += strands[i][threadIdx.x];
    accumulated[column] = before + sum;
}

}  // namespace

void add_columns(std::initializer_list<ColumnSum> sums, cudaStream_t stream) {
    ColumnSums wanted{};
    unsigned count = 0;
    int64_t columns = 0;
    for (ColumnSum const& sum : sums)
        if (sum.accumulated != nullptr) {
            wanted[count++] = sum;
            columns = std::max(columns, sum.columns);
        }
    if (count == 0) return;
    follow("add_columns", sum_columns, dim3(static_cast<unsigned>(ceil_div(columns, kColumns)), count),
           dim3(kColumns, kStrands), 0, stream, wanted);
}

}  // namespace perigee::kernels
