// Newest keys and values into their pages, and the means of the blocks that are complete with them.
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/pool.cuh"
#include "kernels/decode/pages.cuh"

namespace perigee::decode {
namespace {

using namespace kernels;

struct AppendArgs {
    Cache cache;
    bf16 const *k, *v;  ///< [S, G, K]
};
struct PoolArgs {
    Cache cache;
    int32_t first;
};

template <int D, int kThreads>
__device__ void pool_pages(Cache const& c, Pages const& pages, int32_t block, int32_t g) {
    __shared__ PoolSums<D, kThreads> sums;
    pool_block<D, kThreads>(
        c.block_size, c.block_size, [&](int row) { return c.k + pages.row(block * c.block_size + row, g) * D; },
        c.means + pages.mean_row(block, g) * D, sums);
}

/// One sequence and key/value head.
template <int D, int kThreads>
__global__ void __launch_bounds__(kThreads) append_kernel(AppendArgs const a) {
    start_early();
    constexpr int kVectors = D / 8;
    static_assert(2 * kVectors <= kThreads);
    Cache const& c = a.cache;
    int32_t const s = blockIdx.x, g = blockIdx.y, token = c.lengths[s];
    if (token < 0) return;
    Pages const pages(c, s);
    int const thread = threadIdx.x, vector = thread % kVectors;
    if (thread < 2 * kVectors) {
        bool const key = thread < kVectors;
        auto const* const from = reinterpret_cast<uint4 const*>((key ? a.k : a.v) + (int64_t{s} * c.kv_heads + g) * D);
        auto* const to = reinterpret_cast<uint4*>((key ? c.k : c.v) + pages.row(token, g) * D);
        to[vector] = from[vector];
    }
    if ((token + 1) % c.block_size != 0) return;
    __syncthreads();  // the newest key is there
    pool_pages<D, kThreads>(c, pages, token / c.block_size, g);
}

/// One block and key/value head of sequence 0.
template <int D, int kThreads>
__global__ void __launch_bounds__(kThreads) pool_pages_kernel(PoolArgs const a) {
    start_early();
    pool_pages<D, kThreads>(a.cache, Pages(a.cache, 0), a.first + static_cast<int32_t>(blockIdx.x),
                            static_cast<int32_t>(blockIdx.y));
}

}  // namespace

void append(Cache const& cache, bf16 const* k, bf16 const* v, cudaStream_t stream) {
    with_head_dim(cache.head_dim, [&]<int D>() {
        with_pool_threads(cache.block_size, [&]<int kThreads>() {
            launch({.name = "kv_append",
                    .grid = {cache.sequences, cache.kv_heads},
                    .threads = kThreads,
                    .stream = stream,
                    .early = true},
                   append_kernel<D, kThreads>, AppendArgs{cache, k, v});
        });
    });
}

void pool(Cache const& cache, int64_t first, int64_t count, cudaStream_t stream) {
    with_head_dim(cache.head_dim, [&]<int D>() {
        with_pool_threads(cache.block_size, [&]<int kThreads>() {
            launch({.name = "pool_pages",
                    .grid = {count, cache.kv_heads},
                    .threads = kThreads,
                    .stream = stream,
                    .early = true},
                   pool_pages_kernel<D, kThreads>, PoolArgs{cache, static_cast<int32_t>(first)});
        });
    });
}

}  // namespace perigee::decode
