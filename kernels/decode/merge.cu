// Merges partial attention results by log-sum-exp.
#include "kernels/common/fragments.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/pool.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/decode/pages.cuh"
#include "kernels/decode/partials.h"

namespace perigee::decode {
namespace {

using namespace kernels;

constexpr int kMergeThreads = 512;
constexpr int64_t kFewPooled = 256;  // up to this block size fewer threads pool a block
static_assert(pool_threads(kFewPooled) < kMergeThreads && pool_threads(kFewPooled + 1) == kMergeThreads);

/// Writes the mean of the block that the newest token completes, if any.
template <int D>
__device__ void pool_completed(Cache const& c, int32_t s, int32_t g) {
    int32_t const token = c.lengths[s], block = token / c.block_size;
    if (token < 0 || (token + 1) % c.block_size != 0) return;
    Pages const pages(c, s);
    auto const key = [&](int row) { return c.k + pages.row(block * c.block_size + row, g) * D; };
    bf16* const mean = c.means + pages.mean_row(block, g) * D;
    if (c.block_size <= kFewPooled)
        pool_block<D, pool_threads(kFewPooled)>(c.block_size, c.block_size, key, mean);
    else
        pool_block<D, kMergeThreads>(c.block_size, c.block_size, key, mean);
}

/// One head of one sequence. Each run of lanes sums every kRuns-th partial result. The sums of the runs are then added
/// in a fixed order, so the result depends only on the splits.
template <int D>
__global__ void __launch_bounds__(kMergeThreads, 1) merge_kernel(AttendArgs const a) {
    wait_for_previous();
    let_next_begin();  // early prefetches by the next products would steal bandwidth from this kernel
    constexpr int kLanes = D / 4, kRuns = kMergeThreads / kLanes, kAtOnce = 8;
    __shared__ alignas(16) float results[kRuns][D];
    __shared__ float sums[kRuns];
    int32_t const s = blockIdx.y, head = blockIdx.x, thread = threadIdx.x, run = thread / kLanes,
                  lane = thread % kLanes;
    if (a.pools && head % a.group == 0) pool_completed<D>(a.cache, s, head / a.group);
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
                o.x += weight * (counts ? x[j].x : 0), o.y += weight * (counts ? x[j].y : 0);
                o.z += weight * (counts ? x[j].z : 0), o.w += weight * (counts ? x[j].w : 0);
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
        launch({"decode_merge", args.heads, args.cache.sequences, kMergeThreads, 0, stream, 1, true}, merge_kernel<D>,
               args);
    });
}

}  // namespace perigee::decode
