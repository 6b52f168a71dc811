// What every way to merge partial results does alike, so that all give the same bits.
#pragma once

#include "kernels/common/fragments.cuh"
#include "kernels/common/pool.cuh"
#include "kernels/decode/pages.cuh"
#include "kernels/decode/partials.h"

namespace perigee::decode {

constexpr int kPoolBytes = 16 << 10;  // shared memory in which a block is pooled

/// Every kMergeRuns-th partial result is summed first; the sums are then added in order.
template <int D>
constexpr int kMergeRuns = 2048 / D;

/// Writes the mean of the block that the newest token completes, if any. By kPresent threads; `memory`: kPoolBytes.
template <int D, int kPresent>
__device__ __forceinline__ void pool_completed(Cache const& c, int32_t s, int32_t g, void* memory) {
    using namespace kernels;
    int32_t const token = c.lengths[s], block = token / c.block_size;
    if (token < 0 || (token + 1) % c.block_size != 0) return;
    Pages const pages(c, s);
    auto const key = [&](int row) { return c.k + pages.row(block * c.block_size + row, g) * D; };
    bf16* const mean = c.means + pages.mean_row(block, g) * D;
    with_pool_threads(c.block_size, [&]<int kThreads>() {
        static_assert(sizeof(PoolSums<D, kThreads>) <= kPoolBytes);
        pool_block<D, kThreads, kPresent>(c.block_size, c.block_size, key, mean,
                                          *static_cast<PoolSums<D, kThreads>*>(memory));
    });
}

}  // namespace perigee::decode
