// Copies from global to shared memory that no thread waits for until it says so (cp.async).
#pragma once

#include <cstdint>

namespace perigee::kernels {

__device__ __forceinline__ uint32_t shared_address(void const* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Starts copying 16 or 4 bytes, or zeros where not `there`; `from` is then not read.
__device__ __forceinline__ void copy_16(void* to, void const* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_4(void* to, void const* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0)
                 : "memory");
}

/// What this thread has started so far is a group; until all but its last kPending groups are there.
__device__ __forceinline__ void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_for_copy_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Until all that this thread has started is there. Hopper's asynchronous units see it after fence_shared_for_async.
__device__ __forceinline__ void finish_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace perigee::kernels
