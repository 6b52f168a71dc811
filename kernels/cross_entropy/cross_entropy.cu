#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/cross_entropy/cross_entropy.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 512;
constexpr int kAhead = 4;  // runs in flight in each thread

/// What exponentials are taken relative to: a maximum of -inf (nothing seen, or only -inf) would turn them into NaN.
__device__ __forceinline__ float shift_of(float max) { return max == -INFINITY ? 0 : max; }

/// Hands a row to `f`, kAhead runs of each thread at a time: f(runs, i, present), run s starting at column
/// i + s * blockDim.x * N.
template <int N, class F>
__device__ __forceinline__ void over_row(bf16 const* row, int64_t width, F const& f) {
    int64_t const stride = int64_t{blockDim.x} * N;
    for (int64_t i = int64_t{threadIdx.x} * N; i < width; i += kAhead * stride) {
        Run<bf16, N> runs[kAhead];
#pragma unroll
        for (int s = 0; s < kAhead; ++s)
            if (i + s * stride < width) runs[s] = load_run<N>(row + i + s * stride);
        f(runs, i, stride);
    }
}

template <int N>
__global__ void __launch_bounds__(kThreads) stats(SoftmaxStats const a) {
    int64_t const t = blockIdx.x;
    bf16 const* const row = a.logits + t * a.vocab;
    float max = -INFINITY, sum = 0;
    over_row<N>(row, a.vocab, [&](Run<bf16, N> const(&runs)[kAhead], int64_t i, int64_t stride) {
        float values[kAhead][N];
        float largest = max;
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
            bool const present = i + s * stride < a.vocab;
#pragma unroll
            for (int j = 0; j < N; ++j) {
                values[s][j] = present ? widen(runs[s].values[j]) : -INFINITY;
                largest = fmaxf(largest, values[s][j]);
            }
        }
        float const shift = shift_of(largest);
        sum *= __expf(max - shift);
        max = largest;
#pragma unroll
        for (int s = 0; s < kAhead; ++s)
#pragma unroll
            for (int j = 0; j < N; ++j) sum += __expf(values[s][j] - shift);
    });
    float const largest = block_max(max);
    float const total = block_sum(sum * __expf(max - shift_of(largest)));
    if (threadIdx.x != 0) return;
    int64_t const local = a.targets[t] - a.vocab_begin;
    a.max[t] = largest;
    a.sum[t] = total;
    a.target[t] = 0 <= local && local < a.vocab ? widen(row[local]) : 0;
}

__global__ void rescale(SoftmaxRescale const a) {
    int64_t const t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (t < a.tokens) a.sum[t] *= expf(a.max[t] - a.global_max[t]);
}

template <int N>
__global__ void __launch_bounds__(kThreads) loss(CrossEntropy const a) {
    int64_t const t = blockIdx.x;
    float const weight = a.weights[t], max = a.max[t], sum = a.sum[t];
    if (threadIdx.x == 0) a.nll[t] = weight == 0 ? 0 : max + logf(sum) - a.target[t];
    if (a.dlogits == nullptr) return;
    bf16* const gradient = a.dlogits + t * a.vocab;
    if (weight == 0) {
        for (int64_t i = int64_t{threadIdx.x} * N; i < a.vocab; i += int64_t{blockDim.x} * N)
            store_run<N>(gradient + i, Run<bf16, N>{});
        return;
    }
    auto const factor = static_cast<float>(weight * a.scale);
    float const scaled = factor / sum;
    int64_t const local = a.targets[t] - a.vocab_begin;
    over_row<N>(a.logits + t * a.vocab, a.vocab, [&](Run<bf16, N> const(&runs)[kAhead], int64_t i, int64_t stride) {
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
            int64_t const at = i + s * stride;
            if (at >= a.vocab) continue;
            float values[N];
            unpack(values, runs[s]);
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] = scaled * __expf(values[j] - max) - (at + j == local ? factor : 0);
            store(gradient + at, values);
        }
    });
}

}  // namespace

void softmax_stats(SoftmaxStats const& args, cudaStream_t stream) {
    if (args.tokens == 0) return;
    auto const blocks = static_cast<unsigned>(args.tokens);
    if (in_runs_of_eight(args.vocab, {args.logits}))
        stats<8><<<blocks, kThreads, 0, stream>>>(args);
    else
        stats<1><<<blocks, kThreads, 0, stream>>>(args);
    check_launch("softmax_stats");
}

void softmax_rescale(SoftmaxRescale const& args, cudaStream_t stream) {
    if (args.tokens == 0) return;
    rescale<<<static_cast<unsigned>(ceil_div(args.tokens, 256)), 256, 0, stream>>>(args);
    check_launch("softmax_rescale");
}

void cross_entropy(CrossEntropy const& args, cudaStream_t stream) {
    if (args.tokens == 0) return;
    auto const blocks = static_cast<unsigned>(args.tokens);
    if (in_runs_of_eight(args.vocab, {args.logits, args.dlogits}))
        loss<8><<<blocks, kThreads, 0, stream>>>(args);
    else
        loss<1><<<blocks, kThreads, 0, stream>>>(args);
    check_launch("cross_entropy");
}

}  // namespace perigee::kernels
