#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/flat/flat.h"

namespace perigee::kernels {

namespace {

constexpr int kTile = 32, kRows = 8;

/// A block moves tiles of kTile x kTile through shared memory, so that it reads and writes whole rows of them.
__global__ void __launch_bounds__(kTile* kRows) move_tiles(Transpose const a) {
    __shared__ float tile[kTile][kTile + 1];
    int const x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
    int64_t const row = int64_t{blockIdx.x} * kTile, column = int64_t{blockIdx.y} * kTile;
    for (int64_t m = blockIdx.z; m < a.matrices; m += gridDim.z) {
        int64_t const matrix = m * a.rows * a.columns;
        for (int i = y; i < kTile; i += kRows)
            if (row + i < a.rows && column + x < a.columns)
                tile[i][x] = a.from[matrix + (row + i) * a.columns + column + x];
        __syncthreads();
        for (int i = y; i < kTile; i += kRows)
            if (column + i < a.columns && row + x < a.rows) a.to[matrix + (column + i) * a.rows + row + x] = tile[x][i];
        __syncthreads();
    }
}

}  // namespace

void transpose(Transpose const& args, cudaStream_t stream) {
    if (args.matrices * args.rows * args.columns == 0) return;
    dim3 const grid(static_cast<unsigned>(ceil_div(args.rows, kTile)),
                    static_cast<unsigned>(ceil_div(args.columns, kTile)),
                    static_cast<unsigned>(std::min<int64_t>(args.matrices, 65535)));
    move_tiles<<<grid, dim3(kTile, kRows), 0, stream>>>(args);
    check_launch("transpose");
}

}  // namespace perigee::kernels
