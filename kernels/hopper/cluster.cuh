// Clusters of thread blocks: their blocks run at the same time and reach one another's shared memory (distributed
// shared memory), and TMA can multicast one read to all of them. No block may reach another before that one has begun,
// or after it has ended: cluster barriers at both ends of a kernel. PTX ISA, "barrier.cluster", "mapa", "st.async".
#pragma once

#include "kernels/hopper/barrier.cuh"

namespace perigee::hopper {

/// This thread block's number in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// Every thread of the cluster calls both at the beginning of a kernel: all blocks have begun, and barriers that
/// publish_barriers() made known are initialised in all of them.
__device__ __forceinline__ void cluster_begin() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_begun() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

/// Every thread of the cluster calls it at the end of a kernel. Releasing waits until remote arrivals have landed, so
/// no block ends while another can still reach it.
__device__ __forceinline__ void cluster_end() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// The address, in the cluster's shared memory, of what this thread block has at `address` and block `rank` has at the
/// same place (mapa).
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

/// An arrival at the barrier at cluster address `remote`. It orders memory within its own thread block only. That is
/// enough to release what the tensor cores have finished reading.
__device__ __forceinline__ void arrive_at(uint32_t remote) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}

/// Numbers that thread block 0 passes on to thread block 1, one at a time. One thread of each block calls, with a
/// position of its own.
class Mailbox {
  public:
    __device__ void init() {
        full_.init(1);
        free_.init(1);
    }
    __device__ void send(int32_t number, RingPosition<1>& at) {
        wait(free_, at.free_parity());
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %1, [%2];" ::"r"(
                         cluster_address(shared_address(&number_), 1)),
                     "r"(number), "r"(cluster_address(shared_address(&full_), 1))
                     : "memory");
        at.advance();
    }
    __device__ int32_t receive(RingPosition<1>& at) {
        full_.arrive_and_expect(sizeof number_);
        wait(full_, at.parity());
        int32_t const number = number_;
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                         cluster_address(shared_address(&free_), 0))
                     : "memory");
        at.advance();
        return number;
    }

  private:
    /// As Barrier::wait(), for what the other thread block has done.
    static __device__ void wait(Barrier& barrier, uint32_t parity) {
        uint32_t done = 0;
        while (done == 0)
            asm volatile(
                "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                "selp.u32 %0, 1, 0, p;\n}"
                : "=r"(done)
                : "r"(shared_address(&barrier)), "r"(parity)
                : "memory");
    }

    int32_t number_;
    Barrier full_;  ///< the one in thread block 1 is used
    Barrier free_;  ///< the one in thread block 0 is used
};

}  // namespace perigee::hopper
