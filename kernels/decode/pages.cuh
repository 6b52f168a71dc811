// Where tokens and means are in a cache of pages.
#pragma once

#include "kernels/decode/decode.h"

namespace perigee::decode {

/// The pages of one sequence.
struct Pages {
    int32_t const* table;
    int32_t page_size, block_pages, kv_heads;

    __device__ Pages(Cache const& cache, int s)
        : table(cache.table + int64_t{s} * cache.row_pages),
          page_size(cache.page_size),
          block_pages(cache.block_size / cache.page_size),
          kv_heads(cache.kv_heads) {}

    /// Row of a token's key, and of its value, of head g: rows have K values.
    __device__ int64_t row(int32_t token, int32_t g) const {
        return (int64_t{table[token / page_size]} * page_size + token % page_size) * kv_heads + g;
    }
    /// Row of a complete block's mean.
    __device__ int64_t mean_row(int32_t block, int32_t g) const {
        return int64_t{table[block * block_pages]} * kv_heads + g;
    }
};

/// Brings a sequence's page table to the L1 cache.
__device__ __forceinline__ void prefetch_table(Cache const& cache, int s) {
    constexpr int kLine = 128;
    auto const* const table = reinterpret_cast<char const*>(cache.table + int64_t{s} * cache.row_pages);
    for (int at = static_cast<int>(threadIdx.x) * kLine; at < cache.row_pages * 4;
         at += static_cast<int>(blockDim.x) * kLine)
        asm volatile("prefetch.global.L1 [%0];" ::"l"(table + at));
}

}  // namespace perigee::decode
