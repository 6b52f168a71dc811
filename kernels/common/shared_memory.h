// How much shared memory thread blocks may have: 99 KiB on compute capability 8.6, 8.9 and 12.0, 163 KiB on 8.0,
// 227 KiB on 9.0 and 10.0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perigee::kernels {

/// Bytes of a block that every supported GPU has.
constexpr size_t kLeastShared = 99 << 10;

/// Bytes that a thread block may have on the current GPU, static ones included. PERIGEE_SHARED_MEMORY_KIB in the
/// environment makes them fewer, and the multiprocessor's to match: tests of GPUs that have less.
int64_t shared_of_block();
int64_t shared_of_multiprocessor();

/// Bytes of dynamic shared memory that are left to a kernel.
size_t room_for_shared(void const* kernel);
template <class... Args>
size_t room_for_shared(void (*kernel)(Args...)) {
    return room_for_shared(reinterpret_cast<void const*>(kernel));
}

/// Lets a kernel have `bytes` of dynamic shared memory. Throws Category::internal where the GPU does not have them.
void allow_shared(void const* kernel, size_t bytes);
template <class... Args>
void allow_shared(void (*kernel)(Args...), size_t bytes) {
    allow_shared(reinterpret_cast<void const*>(kernel), bytes);
}

/// Throws Category::config: for CUDA code, which cannot format messages.
[[noreturn]] void refuse_shape(char const* why);

/// Blocks of a kernel that the GPU works on at a time, each with `shared` bytes of dynamic shared memory.
int64_t resident_blocks(void const* kernel, unsigned threads, size_t shared);
template <class... Args>
int64_t resident_blocks(void (*kernel)(Args...), unsigned threads, size_t shared) {
    return resident_blocks(reinterpret_cast<void const*>(kernel), threads, shared);
}

}  // namespace perigee::kernels
