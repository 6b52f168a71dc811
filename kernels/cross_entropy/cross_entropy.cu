#include "kernels/common/ahead.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/cross_entropy/cross_entropy.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 512;
constexpr int kStatsThreads = 256;
constexpr float kLog2OfE = 1.44269504088896340736f;
constexpr int kRuns = 4;  // that a thread works on side by side

template <int N>
using Ring = Ahead<N, kRuns, 3>;

/// e^x, zero where the result would be denormal.
__device__ __forceinline__ float fast_exp(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2OfE));
    return y;
}

/// What exponentials are taken relative to: a maximum of -inf (nothing seen, or only -inf) would turn them into NaN.
__device__ __forceinline__ float shift_of(float max) { return max == -INFINITY ? 0 : max; }

template <int N>
__global__ void __launch_bounds__(kStatsThreads) stats(SoftmaxStats const a) {
    extern __shared__ __align__(16) unsigned char memory[];
    Ring<N> ring(memory);
    int64_t const t = blockIdx.x, stride = int64_t{blockDim.x} * N;
    bf16 const* const row = a.logits + t * a.vocab;
    auto const fetch = [&](int64_t i) {
#pragma unroll
        for (int s = 0; s < kRuns; ++s)
            if (i + s * stride < a.vocab) ring.fetch(s, row + i + s * stride);
        ring.end_stage();
    };
    float max = -INFINITY, sum = 0;
    int64_t i = int64_t{threadIdx.x} * N, ahead = i;
    for (int stage = 1; stage < Ring<N>::kDepth; ++stage, ahead += kRuns * stride) fetch(ahead);
    for (; i < a.vocab; i += kRuns * stride, ahead += kRuns * stride) {
        fetch(ahead);
        ring.open_stage();
        float values[kRuns][N];
        float largest = max;
#pragma unroll
        for (int s = 0; s < kRuns; ++s) {
            bool const present = i + s * stride < a.vocab;
            unpack(values[s], ring.run(s));
#pragma unroll
            for (int j = 0; j < N; ++j) {
                if (!present) values[s][j] = -INFINITY;
                largest = fmaxf(largest, values[s][j]);
            }
        }
        float const shift = shift_of(largest);
        sum *= fast_exp(max - shift);
        max = largest;
#pragma unroll
        for (int s = 0; s < kRuns; ++s)
#pragma unroll
            for (int j = 0; j < N; ++j) sum += fast_exp(values[s][j] - shift);
    }
    float const largest = block_max(max);
    float const total = block_sum(sum * fast_exp(max - shift_of(largest)));
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
    int64_t const stride = int64_t{blockDim.x} * N;
    for (int64_t i = int64_t{threadIdx.x} * N; i < a.vocab; i += kRuns * stride) {
        Run<bf16, N> runs[kRuns];
#pragma unroll
        for (int s = 0; s < kRuns; ++s)
            if (i + s * stride < a.vocab) runs[s] = load_run<N>(a.logits + t * a.vocab + i + s * stride);
#pragma unroll
        for (int s = 0; s < kRuns; ++s) {
            int64_t const at = i + s * stride;
            if (at >= a.vocab) continue;
            float values[N];
            unpack(values, runs[s]);
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] = scaled * fast_exp(values[j] - max) - (at + j == local ? factor : 0);
            store(gradient + at, values);
        }
    }
}

template <int N>
void launch_stats(SoftmaxStats const& args, cudaStream_t stream) {
    size_t const shared = Ring<N>::bytes(kStatsThreads);
    allow_shared(stats<N>, shared);
    stats<N><<<static_cast<unsigned>(args.tokens), kStatsThreads, shared, stream>>>(args);
}

}  // namespace

void softmax_stats(SoftmaxStats const& args, cudaStream_t stream) {
    if (args.tokens == 0) return;
    if (in_runs_of_eight(args.vocab, {args.logits}))
        launch_stats<8>(args, stream);
    else
        launch_stats<1>(args, stream);
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
