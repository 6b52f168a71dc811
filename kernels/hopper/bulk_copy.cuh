// TMA: boxes of a tensor in global memory to tiles in shared memory, where one thread starts a copy
// and a barrier learns of its bytes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/hopper/tile.cuh"

namespace perigee::hopper {

/// What the L2 cache should do with the lines: the words createpolicy makes for whole-fraction policies.
enum class Keep : uint64_t {
    normal = 0x1000000000000000,
    evict_first = 0x12f0000000000000,
    evict_last = 0x14f0000000000000,
};

/// The box whose first element is (column, head, row) of a map made by rows_map. What lies outside the tensor arrives
/// as zeros, and counts as bytes.
__device__ __forceinline__ void copy_box(void* to, CUtensorMap const& map, Barrier& barrier, int32_t column,
                                         int32_t head, int32_t row, Keep keep = Keep::normal) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(column), "r"(head), "r"(row),
        "l"(static_cast<uint64_t>(keep))
        : "memory");
}

/// The same box for all kCluster thread blocks of the cluster, each at the same place of its shared memory and with its
/// own barrier.
template <int kCluster>
__device__ __forceinline__ void multicast_box(void* to, CUtensorMap const& map, Barrier& barrier, int32_t column,
                                              int32_t head, int32_t row, Keep keep) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(column), "r"(head), "r"(row),
        "h"(uint16_t{(1 << kCluster) - 1}), "l"(static_cast<uint64_t>(keep))
        : "memory");
}

/// Bytes as they lie in memory; both ends and their number are multiples of 16.
__device__ __forceinline__ void copy_bytes(void* to, void const* from, uint32_t bytes, Barrier& barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
}

/// Starts adding fp32 numbers in shared memory to those in global memory; both ends and their bytes are multiples
/// of 16. What one thread starts, here and in store_floats(), is a group after add_commit; add_wait_read is until
/// shared memory has been read, add_wait until global memory has the numbers.
__device__ __forceinline__ void add_floats(float4* to, float4 const* from, uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}
/// As add_floats(), but what the global memory holds does not count.
__device__ __forceinline__ void store_floats(float4* to, float4 const* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void add_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void add_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void add_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// The rows [row, row + kRows) of a head as a tile [kRows, kColumns]. The barrier expects
/// tile_bytes<kRows, kColumns>(). kUnroll 1 takes the fewest registers. kCluster: thread blocks of the
/// cluster, which all get the tile.
template <int kRows, int kColumns, int kUnroll = kPanels<kColumns>, int kCluster = 1>
__device__ __forceinline__ void copy_tile(unsigned char* to, CUtensorMap const& map, Barrier& barrier, int32_t head,
                                          int32_t row, Keep keep = Keep::normal) {
#pragma unroll kUnroll
    for (int panel = 0; panel < kPanels<kColumns>; ++panel) {
        unsigned char* const at = to + panel * panel_bytes<kRows>();
        if constexpr (kCluster > 1)
            multicast_box<kCluster>(at, map, barrier, panel * kPanelColumns, head, row, keep);
        else
            copy_box(at, map, barrier, panel * kPanelColumns, head, row, keep);
    }
}

}  // namespace perigee::hopper
