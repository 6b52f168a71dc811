// What the sm80 kernels share: query tiles against KV tiles of 64 keys by the products of four warps. Tiles are
// swizzled: padded ones would not fit into the 99 KiB of shared memory that some GPUs have for a thread block.
#pragma once

#include "kernels/ampere/tile.cuh"
#include "kernels/block_sparse_attention/query_tiles.cuh"

namespace perigee::block_sparse {

using namespace ampere;

inline constexpr int kThreads = 128;  ///< four warps

/// The thread block's query tile: tiles of all heads of the pass are one grid. False where there is none.
template <bool kLocal, int kRows>
__device__ bool find_work(AttentionArgs const& a, Work& work) {
    std::conditional_t<kLocal, LocalScheduler<kRows>, RoutedScheduler<kRows>> scheduler(a, false);
    if (!scheduler.next()) return false;
    work = scheduler.work();
    return true;
}
template <bool kLocal>
__device__ __forceinline__ Row row_of(AttentionArgs const& a, Work const& work, int i) {
    return kLocal ? local_row(a, work, i) : row_of_entry(a, work, routed_entry(a, work, i));
}

/// Starts copying the keys and values [begin, begin + kTileKeys) of kv head g; zeros from `end` on.
template <int D>
__device__ __forceinline__ void load_keys(AttentionArgs const& a, int64_t g, int32_t begin, int32_t end, bf16* k,
                                          bf16* v) {
    auto const at = [&](int i) { return begin + i < end ? int64_t{begin + i} * a.kv_heads + g : -1; };
    load_rows<D, kTileKeys, kThreads, Swizzled<D>>(k, a.k, at);
    load_rows<D, kTileKeys, kThreads, Swizzled<D>>(v, a.v, at);
    end_copy_group();
}

}  // namespace perigee::block_sparse
