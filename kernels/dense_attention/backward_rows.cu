// Before and after the dense backward: row statistics; dq from its sums.
#include "kernels/common/launch.cuh"
#include "kernels/dense_attention/backward_sm90.cuh"

namespace perigee::dense {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float dot(uint32_t x, uint32_t y) { return low(x) * low(y) + high(x) * high(y); }

/// A thread block for each row tile and head. Rows that are not there weigh nothing.
template <int D>
__global__ void __launch_bounds__(kThreads) preprocess_kernel(__grid_constant__ BackwardArgs const a) {
    using T = BackwardTiling<D>;
    constexpr int kUsed = D / 8, kLanes = D == 96 ? 16 : kUsed, kRowsAtOnce = kThreads / kLanes,
                  kSteps = T::kRows / kRowsAtOnce;
    start_early();
    auto const index = static_cast<int32_t>(blockIdx.x), head = static_cast<int32_t>(blockIdx.y);
    RowTile const tile = RowTile::of<D>(a.schedule, index);
    if (tile.rows == 0) return;
    int const lane = threadIdx.x % kLanes, first = threadIdx.x / kLanes;
    uint4 x[kSteps] = {}, y[kSteps] = {};
    float lse[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
        int const row = first + i * kRowsAtOnce;
        if (row >= tile.rows || lane >= kUsed) continue;
        int64_t const at = int64_t{tile.token + row} * a.heads + a.first_kv_head * a.group + head;
        x[i] = reinterpret_cast<uint4 const*>(a.d_o + at * D)[lane];
        y[i] = reinterpret_cast<uint4 const*>(a.o + at * D)[lane];
        lse[i] = a.lse[at];
    }
    int64_t const tile_of_head = int64_t{head} * a.row_tiles + index;
    if (threadIdx.x == 0) {
        a.turns[tile_of_head] = 0;
        if (head % a.group == 0 && index % T::kTilesOfKv == 0)
            a.parts_done[head / a.group * (a.row_tiles / T::kTilesOfKv) + index / T::kTilesOfKv] = 0;
    }
    float* const stats = a.stats + tile_of_head * 2 * T::kRows;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
        int const row = first + i * kRowsAtOnce;
        float sum = dot(x[i].x, y[i].x) + dot(x[i].y, y[i].y) + dot(x[i].z, y[i].z) + dot(x[i].w, y[i].w);
        sum = across_lanes<kLanes>(sum, [](float m, float n) { return m + n; });
        if (lane != 0) continue;
        float const base = row < tile.rows ? base_of_weights(lse[i]) : INFINITY, delta = row < tile.rows ? sum : 0;
        stats[row] = -base / (a.scale * kLog2e);
        stats[T::kRows + row] = -delta;
    }
}

template <int D>
__global__ void __launch_bounds__(kThreads) convert_kernel(__grid_constant__ BackwardArgs const a) {
    using T = BackwardTiling<D>;
    static_assert(kThreads == kConsumers);
    start_early();
    auto const index = static_cast<int32_t>(blockIdx.x), head = static_cast<int32_t>(blockIdx.y);
    RowTile const tile = RowTile::of<D>(a.schedule, index);
    if (tile.rows == 0) return;
    float4 const* const from = a.sums + (int64_t{head} * a.row_tiles + index) * T::kSums + threadIdx.x;
    float dq[32];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float4 const x = __ldcs(from + i * kThreads);
        dq[4 * i] = x.x, dq[4 * i + 1] = x.y, dq[4 * i + 2] = x.z, dq[4 * i + 3] = x.w;
    }
    int const warpgroup = threadIdx.x / 128;
    int const row = D > 64 ? 0 : 64 * warpgroup, column = D > 64 ? 64 * warpgroup : 0;
    bf16* const to = a.dq + (int64_t{tile.token + row} * a.heads + a.first_kv_head * a.group + head) * D + column;
    if (column + 64 <= D)
        hopper::write_rows<64>(to, int64_t{a.heads} * D, tile.rows - row, dq, a.scale, false);
    else
        hopper::write_rows<32>(to, int64_t{a.heads} * D, tile.rows - row, reinterpret_cast<float const(&)[16]>(dq),
                               a.scale, false);
}

}  // namespace

template <int D>
void preprocess_backward(BackwardArgs const& args, cudaStream_t stream) {
    launch({.name = "dense_attention_row_stats",
            .grid = {args.row_tiles, args.pass_kv_heads * args.group},
            .threads = kThreads,
            .stream = stream,
            .early = true},
           preprocess_kernel<D>, args);
}
template <int D>
void convert_query_gradient(BackwardArgs const& args, cudaStream_t stream) {
    launch({.name = "dense_attention_query_gradient",
            .grid = {args.row_tiles, args.pass_kv_heads * args.group},
            .threads = kThreads,
            .stream = stream,
            .early = true},
           convert_kernel<D>, args);
}
template void preprocess_backward<64>(BackwardArgs const&, cudaStream_t);
template void preprocess_backward<96>(BackwardArgs const&, cudaStream_t);
template void preprocess_backward<128>(BackwardArgs const&, cudaStream_t);
template void convert_query_gradient<64>(BackwardArgs const&, cudaStream_t);
template void convert_query_gradient<96>(BackwardArgs const&, cudaStream_t);
template void convert_query_gradient<128>(BackwardArgs const&, cudaStream_t);

}  // namespace perigee::dense
