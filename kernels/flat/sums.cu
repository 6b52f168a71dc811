#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/flat/flat.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 2048;  // the same on every GPU, so that the order of the sum is

template <class A, class B>
struct Product {
    A const* a;
    B const* b;
    template <int N>
    __device__ __forceinline__ double run(int64_t i) const {
        float x[N], y[N];
        load(x, a + i);
        load(y, b + i);
        double sum = 0;
#pragma unroll
        for (int j = 0; j < N; ++j) sum += static_cast<double>(x[j]) * static_cast<double>(y[j]);
        return sum;
    }
};
template <class T>
struct Square {
    T const* x;
    template <int N>
    __device__ __forceinline__ double run(int64_t i) const {
        float values[N];
        load(values, x + i);
        double sum = 0;
#pragma unroll
        for (int j = 0; j < N; ++j) sum += static_cast<double>(values[j]) * static_cast<double>(values[j]);
        return sum;
    }
};

template <int N, class F>
__global__ void __launch_bounds__(kThreads) partial_sums(double* partials, F const f, int64_t count) {
    constexpr int64_t kStride = int64_t{kBlocks} * kThreads * N;
    double sum = 0;
#pragma unroll 2
    for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N; i < count; i += kStride) {
        if (i + N <= count)
            sum += f.template run<N>(i);
        else
            for (int64_t rest = i; rest < count; ++rest) sum += f.template run<1>(rest);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) total(double* accumulated, double const* partials) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kBlocks / kThreads; ++i) sum += partials[i * kThreads + threadIdx.x];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *accumulated += sum;
}

template <class F>
void sum_of(F const& f, double* sum, int64_t count, bool eights, void* scratch, cudaStream_t stream) {
    auto* const partials = static_cast<double*>(scratch);
    if (eights)
        partial_sums<8><<<kBlocks, kThreads, 0, stream>>>(partials, f, count);
    else
        partial_sums<1><<<kBlocks, kThreads, 0, stream>>>(partials, f, count);
    total<<<1, kThreads, 0, stream>>>(sum, partials);
    check_launch("sum");
}

}  // namespace

size_t sum_scratch() { return kBlocks * sizeof(double); }

void squared_norm(double* sum, float const* x, int64_t count, void* scratch, cudaStream_t stream) {
    sum_of(Square<float>{x}, sum, count, in_runs_of_eight(0, {x}), scratch, stream);
}
void squared_norm(double* sum, bf16 const* x, int64_t count, void* scratch, cudaStream_t stream) {
    sum_of(Square<bf16>{x}, sum, count, in_runs_of_eight(0, {x}), scratch, stream);
}
void weighted_sum(double* sum, float const* values, float const* weights, int64_t count, void* scratch,
                  cudaStream_t stream) {
    sum_of(Product<float, float>{values, weights}, sum, count, in_runs_of_eight(0, {values, weights}), scratch, stream);
}

}  // namespace perigee::kernels
