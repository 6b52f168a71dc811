// Row statistics that the backward gathers with each row: LSE in base 2 and delta = rowsum(do * o). With adds_to_dq
// also dq = 0 and each row's scale, from the largest do, k and v (bits of bf16 without signs are ordered as the
// numbers).
#include <bit>

#include "kernels/block_sparse_attention/backward_sm90.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"

namespace perigee::block_sparse {
namespace {

constexpr int kProductThreads = 256, kRowsAtOnce = 4;

__device__ __forceinline__ float dot(uint32_t x, uint32_t y) { return low(x) * low(y) + high(x) * high(y); }

/// Two columns each: the larger of `max_abs` and eight numbers.
__device__ __forceinline__ uint32_t larger(uint32_t max_abs, uint4 const& eight) {
    constexpr uint32_t kNoSigns = 0x7fff7fff;
    uint32_t const first = __vmaxu2(eight.x & kNoSigns, eight.y & kNoSigns);
    uint32_t const second = __vmaxu2(eight.z & kNoSigns, eight.w & kNoSigns);
    return __vmaxu2(max_abs, __vmaxu2(first, second));
}

/// Lanes that share a row, each with 16 bytes of it at a time: as many as read all of it at once, if that is a power of
/// two.
template <int D>
constexpr int kLanesOfRow = std::has_single_bit(unsigned{D / 8}) ? D / 8 : 4;

/// All loads of do and o of a thread are in flight at once.
template <int D>
__global__ void __launch_bounds__(kProductThreads) preprocess_kernel(AttentionArgs const a) {
    constexpr int kLanes = kLanesOfRow<D>, kVectors = D / 8 / kLanes, kGroups = kProductThreads / kLanes;
    int const lane = threadIdx.x % kLanes;
    int64_t const first = int64_t{blockIdx.x} * (kRowsAtOnce * kGroups) + threadIdx.x / kLanes;
    int64_t const rows = int64_t{a.queries} * a.heads;
    uint4 x[kRowsAtOnce][kVectors], y[kRowsAtOnce][kVectors];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r)
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            int64_t const at = min(first + r * kGroups, rows - 1) * D + (i * kLanes + lane) * 8;
            x[r][i] = *reinterpret_cast<uint4 const*>(a.d_o + at);
            y[r][i] = *reinterpret_cast<uint4 const*>(a.o + at);
        }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
        int64_t const row = first + r * kGroups;
        float sum = 0;
        uint32_t max_abs = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            uint4 const p = x[r][i], q = y[r][i];
            sum += dot(p.x, q.x) + dot(p.y, q.y) + dot(p.z, q.z) + dot(p.w, q.w);
            max_abs = larger(max_abs, p);
        }
        sum = across_lanes<kLanes>(sum, [](float m, float n) { return m + n; });
        max_abs = across_lanes<kLanes>(max(max_abs & 0xffff, max_abs >> 16),
                                       [](uint32_t m, uint32_t n) { return max(m, n); });
        if (row >= rows) continue;
        if (a.adds_to_dq)
#pragma unroll
            for (int i = 0; i < kVectors; ++i)
                *reinterpret_cast<uint4*>(a.dq + row * D + (i * kLanes + lane) * 8) = uint4{};
        if (lane != 0) continue;
        float const factor = a.adds_to_dq ? factor_of_row(max_abs, a.max_abs[0], a.max_abs[1], D) : 1;
        a.rows[row] = {base_of_weights(a.lse[row]), sum, factor};
    }
}

template <int D>
__global__ void __launch_bounds__(kProductThreads) max_abs_kernel(AttentionArgs const a) {
    auto const* const x = reinterpret_cast<uint4 const*>(blockIdx.y == 0 ? a.k : a.v);
    int64_t const count = int64_t{a.tokens} * a.kv_heads * (D / 8);
    uint32_t max_abs = 0;
    int64_t const step = int64_t{gridDim.x} * kProductThreads;
    for (int64_t i = int64_t{blockIdx.x} * kProductThreads + threadIdx.x; i < count; i += 4 * step) {
        uint4 part[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) part[j] = i + j * step < count ? x[i + j * step] : uint4{};
#pragma unroll
        for (int j = 0; j < 4; ++j) max_abs = larger(max_abs, part[j]);
    }
    // Bits of bf16 are whole numbers that fp32 holds.
    auto const most = static_cast<uint32_t>(block_max(static_cast<float>(max(max_abs & 0xffff, max_abs >> 16))));
    uint32_t* const to = a.max_abs + blockIdx.y;
    if (threadIdx.x == 0 && most > *to) atomicMax(to, most);  // few do; a stale *to costs only a needless atomicMax
}

}  // namespace

void preprocess_backward(Stage const& stage, BlockSparseGradients const& gradients) {
    BlockSparseShape const& s = stage.plan.shape;
    cudaStream_t const stream = stage.problem.stream;
    AttentionArgs const args = attention_args(stage, {}, gradients);
    if (args.adds_to_dq)
        check_cuda(cudaMemsetAsync(args.max_abs, 0, stage.plan.max_abs.bytes, stream), "preprocess_backward");
    with_head_dim(s.head_dim, [&]<int D>() {
        int64_t const key_blocks = ceil_div(s.tokens * s.kv_heads * D / 8, kProductThreads);
        int64_t const row_blocks = ceil_div(s.queries * s.heads, kRowsAtOnce * (kProductThreads / kLanesOfRow<D>));
        if (args.adds_to_dq)
            launch({.name = "largest_keys",
                    .grid = {std::min(key_blocks, 8 * multiprocessors()), 2},
                    .threads = kProductThreads,
                    .stream = stream},
                   max_abs_kernel<D>, args);
        launch({.name = "preprocess_backward", .grid = {row_blocks}, .threads = kProductThreads, .stream = stream},
               preprocess_kernel<D>, args);
    });
}

}  // namespace perigee::block_sparse
