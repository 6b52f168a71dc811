// What a backward begins with: of every row the numbers that are gathered with it, rowsum(do * o) among them. Where
// visits add to dq, it is cleared here, and each row's factor needs the largest numbers of do, k and v: the bits of
// bf16 without a sign are in the order of the numbers, infinity and then NaN above all.
#include "kernels/moba/cuda/fused.cuh"
#include "kernels/moba/cuda/launch.cuh"
#include "kernels/moba/cuda/tile.cuh"

namespace perigee::moba {
namespace {

constexpr int kProductThreads = 256, kLanesOfRow = 4;

__device__ __forceinline__ float dot(uint32_t x, uint32_t y) { return low(x) * low(y) + high(x) * high(y); }

/// Of two columns each: the larger of `largest` and what eight numbers hold.
__device__ __forceinline__ uint32_t larger(uint32_t largest, uint4 const& eight) {
    constexpr uint32_t kNoSigns = 0x7fff7fff;
    uint32_t const first = __vmaxu2(eight.x & kNoSigns, eight.y & kNoSigns);
    uint32_t const second = __vmaxu2(eight.z & kNoSigns, eight.w & kNoSigns);
    return __vmaxu2(largest, __vmaxu2(first, second));
}

/// Makes *to the larger of itself and what the block's threads found. All of them call, once in a kernel.
__device__ __forceinline__ void note_largest(uint32_t* to, uint32_t found) {
    __shared__ uint32_t of_warps[32];
    found = __reduce_max_sync(kAllLanes, max(found & 0xffff, found >> 16));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = found;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    found = threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0;
    found = __reduce_max_sync(kAllLanes, found);
    if (threadIdx.x == 0 && found > *to) atomicMax(to, found);  // few do: a block that reads an old number asks in vain
}

/// A quad of lanes per row; all of its loads are under way at once. Where visits add to dq, also clears its row and
/// says by what it is multiplied meanwhile.
template <int D>
__global__ void __launch_bounds__(kProductThreads) row_products_kernel(AttentionArgs const a) {
    constexpr int kPieces = D / 8 / kLanesOfRow;  // 16 bytes each
    int64_t const index = (int64_t{blockIdx.x} * kProductThreads + threadIdx.x) / kLanesOfRow;
    int64_t const rows = int64_t{a.queries} * a.heads, row = min(index, rows - 1);
    int const lane = threadIdx.x % kLanesOfRow;
    auto const* const from = reinterpret_cast<uint4 const*>(a.d_o + row * D) + lane;
    auto const* const with = reinterpret_cast<uint4 const*>(a.o + row * D) + lane;
    uint4 x[kPieces], y[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) x[i] = from[i * kLanesOfRow], y[i] = with[i * kLanesOfRow];
    float const lse = a.lse[row];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
        sum += dot(x[i].x, y[i].x) + dot(x[i].y, y[i].y) + dot(x[i].z, y[i].z) + dot(x[i].w, y[i].w);
    sum = quad_sum(sum);
    uint32_t largest = 0;
    if (a.largest != nullptr) {
        auto* const dq = reinterpret_cast<uint4*>(a.dq + row * D) + lane;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (index < rows) dq[i * kLanesOfRow] = uint4{};
            largest = larger(largest, x[i]);
        }
        largest = max(largest & 0xffff, largest >> 16);
        for (int other = 1; other < kLanesOfRow; other *= 2)
            largest = max(largest, __shfl_xor_sync(kAllLanes, largest, other));
    }
    if (lane != 0 || index >= rows) return;
    float const factor = a.largest != nullptr ? factor_of_row(largest, a.largest[0], a.largest[1], D) : 1;
    a.rows[row] = {base_of_weights(lse), sum, factor};
}

struct KeyTensors {
    uint4 const* k;
    uint4 const* v;
    int64_t count;      ///< of each, in eights
    uint32_t* largest;  ///< of k, of v
};
__global__ void __launch_bounds__(kProductThreads) largest_keys_kernel(KeyTensors const t) {
    uint4 const* const x = blockIdx.y == 0 ? t.k : t.v;
    uint32_t largest = 0;
    int64_t const step = int64_t{gridDim.x} * kProductThreads;
    for (int64_t i = int64_t{blockIdx.x} * kProductThreads + threadIdx.x; i < t.count; i += 4 * step) {
        uint4 part[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) part[j] = i + j * step < t.count ? x[i + j * step] : uint4{};
#pragma unroll
        for (int j = 0; j < 4; ++j) largest = larger(largest, part[j]);
    }
    note_largest(t.largest + blockIdx.y, largest);
}

}  // namespace

void row_products(Stage const& stage, MobaGradients const& gradients) {
    MobaShape const& s = stage.plan.shape;
    AttentionArgs args = attention_args(stage, {});
    args.d_o = gradients.d_o;
    args.o = gradients.o;
    args.lse = gradients.lse;
    args.dq = gradients.dq;
    if (stage.plan.adds_to_dq) {
        args.largest = stage.scratch.largest;
        check_cuda(cudaMemsetAsync(args.largest, 0, stage.plan.largest.bytes, stage.problem.stream), "row_products");
        int64_t const count = s.tokens * s.kv_heads * s.head_dim / 8;
        int64_t const blocks = std::min(ceil_div(count, kProductThreads), 8 * kernels::multiprocessors());
        launch({"largest_keys", blocks, 2, kProductThreads, 0, stage.problem.stream}, largest_keys_kernel,
               KeyTensors{reinterpret_cast<uint4 const*>(args.k), reinterpret_cast<uint4 const*>(args.v), count,
                          args.largest});
    }
    with_head_dim(s.head_dim, [&]<int D>() {
        int64_t const rows = s.queries * s.heads;
        launch({"row_products", ceil_div(rows, kProductThreads / kLanesOfRow), 1, kProductThreads, 0,
                stage.problem.stream},
               row_products_kernel<D>, args);
    });
}

}  // namespace perigee::moba
