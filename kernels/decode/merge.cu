// Merges partial attention results by log-sum-exp.
#include "kernels/decode/merge.cuh"

#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"

namespace perigee::decode {
namespace {

using namespace kernels;

constexpr int kMergeThreads = 512;

/// One head of one sequence. Each run of lanes sums every kRuns-th partial result. The sums of the runs are then added
/// in a fixed order, so the result depends only on the splits.
template <int D>
__global__ void __launch_bounds__(kMergeThreads, 1) merge_kernel(AttendArgs const a) {
    wait_for_previous();
    let_next_begin();  // early prefetches by the next products would steal bandwidth from this kernel
    constexpr int kLanes = D / 4, kRuns = kMergeRuns<D>, kAtOnce = 8;
    static_assert(kRuns == kMergeThreads / kLanes);
    __shared__ alignas(16) float results[kRuns][D];
    __shared__ float sums[kRuns];
    __shared__ alignas(16) unsigned char pooled[kPoolBytes];
    int32_t const s = blockIdx.y, head = blockIdx.x, thread = threadIdx.x, run = thread / kLanes,
                  lane = thread % kLanes;
    if (a.pools && head % a.group == 0) pool_completed<D, kMergeThreads>(a.cache, s, head / a.group, pooled);
    int32_t const splits = a.counts[s * a.cache.kv_heads + head / a.group];
    int64_t const row = int64_t{s} * a.heads + head;
    float const* const lse = a.partial_lse + row * a.most_splits;
    float most = -INFINITY;
    for (int32_t i = thread; i < splits; i += kMergeThreads) most = fmaxf(most, lse[i]);
    most = finite_base(block_max(most));
    float sum = 0;
    float4 o = make_float4(0, 0, 0, 0);
    if (run < kRuns) {
        auto const* const partial = reinterpret_cast<float4 const*>(a.partial + row * a.most_splits * D) + lane;
        for (int32_t from = run; from < splits; from += kAtOnce * kRuns) {
            float4 x[kAtOnce];
            float weights[kAtOnce];
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                int32_t const i = min(from + j * kRuns, splits - 1);
                x[j] = partial[int64_t{i} * kLanes];
                weights[j] = lse[i];
            }
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                float const weight = from + j * kRuns < splits ? exp2_approx(weights[j] - most) : 0;
                sum += weight;
                bool const counts = weight != 0;
                o.x = fmaf(weight, counts ? x[j].x : 0, o.x), o.y = fmaf(weight, counts ? x[j].y : 0, o.y);
                o.z = fmaf(weight, counts ? x[j].z : 0, o.z), o.w = fmaf(weight, counts ? x[j].w : 0, o.w);
            }
        }
        *reinterpret_cast<float4*>(&results[run][lane * 4]) = o;
        if (lane == 0) sums[run] = sum;
    }
    __syncthreads();
    if (thread >= D) return;
    float total = 0, result = 0;
    for (int i = 0; i < kRuns; ++i) total += sums[i], result += results[i][thread];
    a.o[row * D + thread] = narrow<bf16>(result * inverse_of_sum(total));
}

}  // namespace

void merge(AttendArgs const& args, cudaStream_t stream) {
    with_head_dim(args.cache.head_dim, [&]<int D>() {
        launch({.name = "decode_merge",
                .grid = {args.heads, args.cache.sequences},
                .threads = kMergeThreads,
                .stream = stream,
                .early = true},
               merge_kernel<D>, args);
    });
}

}  // namespace perigee::decode
