#include "kernels/common/column_sum.h"
#include "kernels/common/launch.h"

namespace perigee::kernels {

namespace {

constexpr int kColumns = 8;  // 32 bytes, the smallest piece that memory moves: many blocks even for narrow sums
constexpr int kStrands = 64;

__global__ void __launch_bounds__(kColumns* kStrands)
    sum_columns(float* accumulated, float const* partials, int64_t rows, int64_t columns) {
    __shared__ float strands[kStrands][kColumns + 1];
    int64_t const column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
    float sum = 0;
    if (column < columns) {
#pragma unroll 8
        for (int64_t row = threadIdx.y; row < rows; row += kStrands) sum += partials[row * columns + column];
    }
    strands[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= columns) return;
    for (int i = 1; i < kStrands; ++i) sum += strands[i][threadIdx.x];
    accumulated[column] += sum;
}

}  // namespace

void column_sum(float* accumulated, float const* partials, int64_t rows, int64_t columns, cudaStream_t stream) {
    auto const blocks = static_cast<unsigned>(ceil_div(columns, kColumns));
    sum_columns<<<blocks, dim3(kColumns, kStrands), 0, stream>>>(accumulated, partials, rows, columns);
    check_launch("column_sum");
}

}  // namespace perigee::kernels
