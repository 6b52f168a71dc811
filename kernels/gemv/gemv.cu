// A thread block makes 8 columns of y, from as many rows of W. Its warps share k; their sums are added in their order.
// In a product of two fragments the order of k is free, as long as both have the same: a lane's 16 bytes of a row are
// its parts of two products.
#include "kernels/ampere/tile.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/gemv/gemv.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 32;  // of k: 16 bytes of each lane of a quad
constexpr int kMostRows = 8;
constexpr int kColumns = 8;  // of y
constexpr int kUnroll = 8;   // loads of a lane in flight

struct GemvArgs {
    bf16* y;
    bf16 const *x, *w;
    int32_t rows, n, k;
};

__device__ __forceinline__ uint4 load_once(bf16 const* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

__global__ void __launch_bounds__(kThreads, 2) gemv_kernel(GemvArgs const a) {
    alignas(16) __shared__ float parts[kWarps][kMostRows][kColumns];
    start_early();
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4;
    int64_t const first = int64_t{blockIdx.x} * kColumns;
    bf16 const* const w = a.w + min(first + row, int64_t{a.n} - 1) * a.k + lane % 4 * 8;
    bf16 const* const x = a.x + int64_t{min(row, a.rows - 1)} * a.k + lane % 4 * 8;
    bool const there = row < a.rows;
    int const chunks = a.k / kChunk, of_warp = (chunks + kWarps - 1) / kWarps;
    int const begin = warp * of_warp, end = min(begin + of_warp, chunks);
    uint4 const zero = make_uint4(0, 0, 0, 0);
    float sums[4] = {};
    for (int chunk = begin; chunk < end; chunk += kUnroll) {
        uint4 b[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) b[u] = chunk + u < end ? load_once(w + (chunk + u) * kChunk) : zero;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            bool const inside = chunk + u < end;
            int const at = (inside ? chunk + u : begin) * kChunk;
            uint4 const p = there && inside ? *reinterpret_cast<uint4 const*>(x + at) : zero;
            uint32_t const low[4] = {p.x, 0, p.y, 0}, high[4] = {p.z, 0, p.w, 0};  // no rows from 8 on
            ampere::mma(sums, low, b[u].x, b[u].y);
            ampere::mma(sums, high, b[u].z, b[u].w);
        }
    }
    *reinterpret_cast<float2*>(&parts[warp][row][lane % 4 * 2]) = make_float2(sums[0], sums[1]);
    __syncthreads();
    int const r = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
    if (r >= a.rows || first + column >= a.n) return;
    float sum = parts[0][r][column];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) sum += parts[other][r][column];
    a.y[r * int64_t{a.n} + first + column] = narrow<bf16>(sum);
}

}  // namespace

bool takes_gemv(Gemv const& args) {
    return 0 < args.rows && args.rows <= kMostRows && args.k > 0 && args.k % kChunk == 0 && args.n <= INT_MAX &&
           args.k <= INT_MAX && in_runs_of_eight(args.k, {args.x, args.w});
}

void gemv(Gemv const& args, cudaStream_t stream) {
    launch({"gemv", ceil_div(args.n, kColumns), 1, kThreads, 0, stream, 1, true}, gemv_kernel,
           GemvArgs{args.y, args.x, args.w, static_cast<int32_t>(args.rows), static_cast<int32_t>(args.n),
                    static_cast<int32_t>(args.k)});
}

}  // namespace perigee::kernels
