#include "kernels/common/shared_memory.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "kernels/common/launch.h"

namespace perigee::kernels {

namespace {

constexpr int64_t kReserved = 1 << 10;  // of every block, which the driver takes

/// Bytes that the environment leaves to a thread block.
int64_t limit() {
    char const* const kib = std::getenv("PERIGEE_SHARED_MEMORY_KIB");
    if (kib == nullptr || *kib == '\0') return std::numeric_limits<int32_t>::max();
    int64_t const asked = std::strtol(kib, nullptr, 10) << 10;
    if (asked < static_cast<int64_t>(kLeastShared))
        fail(Category::config, "PERIGEE_SHARED_MEMORY_KIB is '{}': at least {} are needed", kib, kLeastShared >> 10);
    return asked;
}

cudaFuncAttributes attributes_of(void const* kernel) {
    cudaFuncAttributes found{};
    check_cuda(cudaFuncGetAttributes(&found, kernel), "cudaFuncGetAttributes");
    return found;
}

int64_t static_shared(void const* kernel) { return static_cast<int64_t>(attributes_of(kernel).sharedSizeBytes); }

}  // namespace

int64_t shared_of_block() { return std::min<int64_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), limit()); }

int64_t shared_of_multiprocessor() {
    return std::min<int64_t>(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor), limit() + kReserved);
}

size_t room_for_shared(void const* kernel) { return static_cast<size_t>(shared_of_block() - static_shared(kernel)); }

void allow_shared(void const* kernel, size_t bytes) {
    if (size_t const room = room_for_shared(kernel); bytes > room)
        fail(Category::internal,
             "a kernel wants {} bytes of shared memory for a thread block, and the GPU has {} for it", bytes, room);
    // Launches of several threads may need different amounts: the limit never falls.
    static std::mutex one_at_a_time;
    std::scoped_lock const lock(one_at_a_time);
    if (static_cast<int64_t>(bytes) <= attributes_of(kernel).maxDynamicSharedSizeBytes) return;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
               "cudaFuncSetAttribute");
}

void refuse_shape(char const* why) { throw Error(Category::config, why); }

int64_t resident_blocks(void const* kernel, unsigned threads, size_t shared) {
    allow_shared(kernel, shared);
    int blocks = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(threads), shared),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    int64_t const of_block = static_cast<int64_t>(shared) + static_shared(kernel) + kReserved;
    return multiprocessors() * std::min<int64_t>(blocks, shared_of_multiprocessor() / of_block);
}

}  // namespace perigee::kernels
