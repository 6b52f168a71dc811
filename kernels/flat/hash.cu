#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/flat/flat.h"
#include "kernels/flat/hash.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 2048;
constexpr int64_t kElementsEach = 8;  // of a thread at least, where there are as many

__device__ __forceinline__ uint64_t bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ uint64_t bits_of(bf16 x) { return x.bits; }

template <class T>
__global__ void __launch_bounds__(kThreads) hash_kernel(unsigned long long* hash, T const* x, int64_t count) {
    unsigned long long sum = 0;
    int64_t const stride = int64_t{gridDim.x} * kThreads;
#pragma unroll 4
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride)
        sum += hash_of(static_cast<uint64_t>(i), bits_of(x[i]));
    sum = block_sum(sum);
    if (threadIdx.x == 0) atomicAdd(hash, sum);  // of integers: exact in every order
}

template <class T>
void launch(uint64_t* hash, T const* x, int64_t count, cudaStream_t stream) {
    if (count == 0) return;
    int64_t const blocks = ceil_div(count, kThreads * kElementsEach);
    auto const grid = static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
    hash_kernel<<<grid, kThreads, 0, stream>>>(reinterpret_cast<unsigned long long*>(hash), x, count);
    check_launch("hash_bits");
}

}  // namespace

void hash_bits(uint64_t* hash, float const* x, int64_t count, cudaStream_t stream) { launch(hash, x, count, stream); }
void hash_bits(uint64_t* hash, bf16 const* x, int64_t count, cudaStream_t stream) { launch(hash, x, count, stream); }

}  // namespace perigee::kernels
