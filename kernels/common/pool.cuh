// A block's centroid: the mean of its keys of one key/value head. Training pools the blocks of a pack, decoding a block
// whose last token has come: the same code, hence the same bits.
#pragma once

#include <cstdint>

#include "base/bf16.h"
#include "kernels/common/fragments.cuh"

namespace perigee::kernels {

inline constexpr int kPoolLoads = 8;  // that a thread has in flight

/// Threads of a thread block that pools blocks of this size: sums depend on it.
constexpr int pool_threads(int64_t block_size) { return block_size <= 256 ? 128 : 512; }

/// Calls f.operator()<pool_threads(block_size)>().
template <class F>
__host__ __device__ __forceinline__ void with_pool_threads(int64_t block_size, F f) {
    if (pool_threads(block_size) == 128)
        f.template operator()<128>();
    else
        f.template operator()<512>();
}

/// Shared memory in which pool_block adds up rows.
template <int D, int kThreads>
using PoolSums = float[kThreads / (D / 8)][D];

/// Writes mean [D]: the sum of `rows` rows of D values, divided by `size`, in bf16. key_at(row) points to a row. The
/// thread block has kPresent threads but adds in the order of one with kThreads, so the result does not depend on
/// kPresent. Each partial sum covers 8 columns of every kRows-th row; partial sums are then added in row order.
template <int D, int kThreads, int kPresent = kThreads, class KeyAt>
__device__ __forceinline__ void pool_block(int32_t rows, int32_t size, KeyAt key_at, bf16* mean,
                                           PoolSums<D, kThreads>& sums) {
    constexpr int kColumns = D / 8, kRows = kThreads / kColumns;
    int const thread = threadIdx.x;
    auto const sum_columns = [&](int of) {
        int const row = of / kColumns, column = of % kColumns * 8;
        float sum[8] = {};
        for (int begin = row; begin < rows; begin += kPoolLoads * kRows) {
            uint4 x[kPoolLoads];
#pragma unroll
            for (int i = 0; i < kPoolLoads; ++i) {
                int const t = begin + i * kRows;
                x[i] = t < rows ? *reinterpret_cast<uint4 const*>(key_at(t) + column) : uint4{};
            }
#pragma unroll
            for (int i = 0; i < kPoolLoads; ++i) add_to(sum, x[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[row][column + i] = sum[i];
    };
    if constexpr (kPresent == kThreads) {
        if (thread < kRows * kColumns) sum_columns(thread);
    } else {
        for (int of = thread; of < kRows * kColumns; of += kPresent) sum_columns(of);
    }
    __syncthreads();
    if (thread < D / 2) {
        float total[2] = {};
        for (int r = 0; r < kRows; ++r) total[0] += sums[r][2 * thread], total[1] += sums[r][2 * thread + 1];
        float const count = static_cast<float>(size);
        reinterpret_cast<uint32_t*>(mean)[thread] = pack(total[0] / count, total[1] / count);
    }
}

}  // namespace perigee::kernels
