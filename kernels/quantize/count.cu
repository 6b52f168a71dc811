// Counts of quantised matrices, for reports.
#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/common/vector.cuh"
#include "kernels/quantize/quantize.h"

namespace perigee::kernels {
namespace {

constexpr int kThreads = 256, kRun = 8;

/// Non-negative doubles are ordered as their bits.
__device__ __forceinline__ void atomic_max(double* to, double x) {
    atomicMax(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(__double_as_longlong(x)));
}

__global__ void __launch_bounds__(kThreads) count(double* counts, uint8_t const* bytes, bf16 const* x, int64_t size) {
    float squares = 0;
    unsigned largest = 0, underflows = 0, top = 0;  // the largest as the bits of an fp32 number
    int64_t const stride = int64_t{gridDim.x} * kThreads * kRun;
    for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kRun; at < size; at += stride) {
        float values[kRun];
        unpack(values, load_run<kRun>(x + at));
        uint2 const eight = *reinterpret_cast<uint2 const*>(bytes + at);
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
            unsigned const magnitude = (i < 4 ? eight.x : eight.y) >> 8 * (i % 4) & 0x7fu;
            largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffu);
            squares += values[i] * values[i];
            underflows += values[i] != 0 && magnitude == 0;
            top += magnitude == kE4m3Largest;
        }
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, mask);
    underflows = __reduce_add_sync(0xffffffffu, underflows), top = __reduce_add_sync(0xffffffffu, top);
    if (threadIdx.x % 32 != 0) return;
    atomic_max(counts + kLargest, __uint_as_float(largest));
    atomicAdd(counts + kSquares, static_cast<double>(squares));
    atomicAdd(counts + kUnderflows, static_cast<double>(underflows));
    atomicAdd(counts + kTopValues, static_cast<double>(top));
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(counts + kElements, static_cast<double>(size));
}

}  // namespace

void count_quantized(double* counts, uint8_t const* bytes, bf16 const* x, int64_t size, cudaStream_t stream) {
    auto const blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(size, kThreads * kRun), 1024));
    if (blocks == 0) return;
    count<<<blocks, kThreads, 0, stream>>>(counts, bytes, x, size);
    check_launch("count_quantized");
}

}  // namespace perigee::kernels
