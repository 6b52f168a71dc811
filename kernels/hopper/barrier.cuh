// Barriers in shared memory (mbarrier) and what goes with a kernel whose warpgroups have different work: ring
// positions, named barriers, the hand-over of registers, a number to read anew where they are few, and the fence
// between ordinary stores and the asynchronous units. PTX ISA, "Asynchronous barrier", "setmaxnreg", "Async proxy".
#pragma once

#include <cstdint>

#include "kernels/common/async_copy.cuh"

namespace perigee::hopper {

using kernels::shared_address;

/// What a barrier counts when a warp arrives as one. compute-sanitizer's racecheck does not see that a lane's arrival
/// comes after what the other lanes did, so in a build for it (PERIGEE_RACECHECK) every lane arrives.
#ifdef PERIGEE_RACECHECK
inline constexpr uint32_t kArrivalsPerWarp = 32;
#else
inline constexpr uint32_t kArrivalsPerWarp = 1;
#endif

/// Completes a phase when `arrivals` arrivals have come and all bytes that were announced have landed. Waiting is for
/// the parity of a phase: 0 for the first, then 1, 0, ...
class alignas(8) Barrier {
  public:
    /// By one thread; publish_barriers and a barrier of the thread block follow before anyone uses it.
    __device__ void init(uint32_t arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
    }
    __device__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
    }
    /// A warp's arrival, which counts as kArrivalsPerWarp: all its lanes call, and their earlier accesses come before.
    /// The lane is elected: to read its number takes hundreds of cycles where memory instructions queue.
    __device__ void arrive_as_one() {
        __syncwarp();
        if constexpr (kArrivalsPerWarp > 1)
            arrive();
        else
            asm volatile(
                "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(
                    shared_address(this))
                : "memory");
    }
    /// One arrival that announces `bytes` of bulk copies.
    __device__ void arrive_and_expect(uint32_t bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                     : "memory");
    }
    /// Announces `bytes` of bulk copies to a phase that still waits for an arrival.
    __device__ void expect(uint32_t bytes) {
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                     : "memory");
    }
    /// One arrival of this thread as soon as all cp.async copies it has started so far are there. Counted in
    /// `arrivals`.
    __device__ void arrive_when_copied() {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(this)) : "memory");
    }
    __device__ bool done(uint32_t parity) {
        uint32_t done;
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(shared_address(this)), "r"(parity)
                     : "memory");
        return done != 0;
    }
    __device__ void wait(uint32_t parity) {
        while (!done(parity)) {
        }
    }

  private:
    uint64_t word_;
};

/// After the initialisations, by the thread that made them.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Walks the stages of a ring. A consumer waits for `parity()` of a stage's "full" barrier; a producer waits for
/// `free_parity()` of its "free" barrier, which passes at once in the first round.
template <int kStages>
struct RingPosition {
    int stage = 0;
    uint32_t round = 0;

    __device__ uint32_t parity() const { return round & 1; }
    __device__ uint32_t free_parity() const { return (round & 1) ^ 1; }
    __device__ void advance() {
        if (++stage == kStages) stage = 0, ++round;
    }
};

/// Ordinary stores to shared memory that the tensor cores or TMA read next need this between: in each
/// writing thread, before the barrier that hands them over, or in the thread that starts the reading, after that
/// barrier.
__device__ __forceinline__ void fence_shared_for_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Barriers of some of a thread block's warps, `id` 1 to 15 (0 is __syncthreads); `threads` a multiple of 32.
__device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Registers per thread of the calling warpgroup from here on; a multiple of 8. All its warps call.
template <int kRegisters>
__device__ __forceinline__ void give_registers_up() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// threadIdx.x, read anew where registers are too few to keep it.
__device__ __forceinline__ uint32_t thread_anew() {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

}  // namespace perigee::hopper
