#include "train/gpu_spin.h"

namespace perigee::testing {

namespace {

__device__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

__global__ void spin(unsigned long long duration) {
    unsigned long long const begin = nanoseconds();
    while (nanoseconds() - begin < duration) __nanosleep(1000);
}

}  // namespace

void queue_spin(cudaStream_t stream, double seconds) {
    spin<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(seconds * 1e9));
}

}  // namespace perigee::testing
