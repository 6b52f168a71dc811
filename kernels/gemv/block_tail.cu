// What follows attention in a transformer block, for few rows: three products in one kernel. Between two kernels a
// multiprocessor waits until the first is done and its results are visible; between two products of this kernel it
// waits for its neighbours alone, and their weights never stop coming.
#include <cstdlib>

#include "kernels/gemv/stream.cuh"

namespace perigee::kernels {

namespace {

using namespace gemv_detail;

constexpr int kProducts = 3;

struct Product {
    bf16 const* w;
    int32_t k, tiles;
    int32_t half;  ///< of a SwiGLU's rows; 0: tiles of adjacent columns
};

struct TailArgs {
    Product products[kProducts];
    bf16 const *o, *norm;
    bf16 *x, *y;
    unsigned* arrived;
    float eps;
    int32_t rows, hidden;
    int32_t skip, ahead, pace;
};

/// Brings the tiles of the gate and up product after the ring's to the L2 cache, while attention leaves the memory
/// idle.
__device__ __forceinline__ void prefetch_ahead(TailArgs const& a) {
#if __CUDA_ARCH__ >= 900
    Product const& p = a.products[1];
    int const i = threadIdx.x;
    if (i >= kColumns) return;
    for (int j = 0; j < a.ahead; ++j) {
        int32_t const tile = static_cast<int32_t>(blockIdx.x + (a.skip + j) * gridDim.x);
        if (tile >= p.tiles) break;
        bf16 const* const row = p.w + (i / 4 * int64_t{p.half} + int64_t{tile} * 4 + i % 4) * p.k;
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row), "r"(p.k * 2) : "memory");
        if (a.pace > 0) __nanosleep(static_cast<unsigned>(a.pace));
    }
#endif
}

/// As Tiles, of all products in turn. Every warp has as many chunks of k as every other.
class TilesOfAll {
  public:
    __device__ explicit TilesOfAll(TailArgs const& a) : a_(a) { begin_product(); }
    __device__ __forceinline__ void next() {
        tile_ += static_cast<int32_t>(gridDim.x);
        if (tile_ < a_.products[product_].tiles) return find();
        ++product_;
        begin_product();
    }

    Chunks chunks;
    bf16 const* from = nullptr;

  private:
    __device__ __forceinline__ void begin_product() {
        tile_ = static_cast<int32_t>(blockIdx.x);
        while (product_ < kProducts && tile_ >= a_.products[product_].tiles) ++product_;
        from = nullptr;
        if (product_ == kProducts) return;
        chunks = Chunks::of_warp(a_.products[product_].k);
        find();
    }
    __device__ __forceinline__ void find() {
        Product const& p = a_.products[product_];
        int const lane = threadIdx.x % 32, i = lane / 4;
        int64_t const row =
            p.half > 0 ? i / 4 * int64_t{p.half} + int64_t{tile_} * 4 + i % 4 : int64_t{tile_} * kColumns + i;
        from = p.w + row * p.k + lane % 4 * 8;
    }

    TailArgs const& a_;
    int product_ = 0;
    int32_t tile_ = 0;
};

/// Waits until all thread blocks have come here for the `first` time, or for the second. `arrived` is zero before the
/// first and after the second. All of them are there: each has a multiprocessor, and the next kernel's come only when
/// these have begun.
__device__ __forceinline__ void await_all(unsigned* arrived, bool first) {
    __syncthreads();  // what this thread block has written
    if (threadIdx.x == 0) {
        unsigned const all = gridDim.x;
        __threadfence();
        atomicInc(arrived, 2 * all - 1);
        unsigned now;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        while (first ? now < all : now != 0);
    }
    __syncthreads();
}

template <bool kHigh, int kStages>
__global__ void __launch_bounds__(kThreads, 2) tail_kernel(__grid_constant__ TailArgs const a) {
    __shared__ alignas(16) float parts[2][kWarps][kHigh ? 16 : 8][kColumns];
    let_next_begin();
    auto* const ring = reinterpret_cast<uint4*>(ampere::dynamic_shared());
    auto* const x = reinterpret_cast<bf16*>(ampere::dynamic_shared() + ring_bytes(kStages));
    Weights<kStages, TilesOfAll> weights(TilesOfAll(a), ring);
    uint4 of_norm[kNormVectors];
    load_norm(a.norm, a.hidden, of_norm);
    int turn = 0;
    auto const compute = [&](Product const& p, auto finish) {
        compute_tiles<kHigh>(parts, turn, weights, x, a.rows, p.k, p.tiles, finish);
    };
    auto const add_to_x = [&](int row, int32_t tile, int column, float value, float, bool there) {
        if (!there) return;
        bf16* const to = a.x + row * int64_t{a.hidden} + int64_t{tile} * kColumns + column;
        auto const before = std::bit_cast<bf16>(__ldcg(reinterpret_cast<uint16_t const*>(to)));
        *to = narrow<bf16>(widen(before) + value);
    };
    prefetch_ahead(a);
    wait_for_previous();
    load_x(a.o, a.rows, a.products[0].k, x);
    compute(a.products[0], add_to_x);
    await_all(a.arrived, true);
    load_normed(a.x, a.rows, a.hidden, a.eps, of_norm, x);
    compute(a.products[1], [&](int row, int32_t tile, int column, float value, float other, bool there) {
        if (there && column < 4)
            a.y[row * int64_t{a.products[1].half} + int64_t{tile} * 4 + column] = swiglu(value, other);
    });
    await_all(a.arrived, false);
    load_x(a.y, a.rows, a.products[2].k, x);
    compute(a.products[2], add_to_x);
}

int knob(char const* name, int otherwise) {
    char const* const value = getenv(name);
    return value != nullptr ? atoi(value) : otherwise;
}

size_t shared_of_rows(BlockTail const& t, int stages) {
    int64_t const widest = std::max({t.width, t.hidden, t.intermediate});
    return ring_bytes(stages) + static_cast<size_t>(t.rows * (widest + kPadding)) * sizeof(bf16);
}

}  // namespace

bool takes_block_tail(BlockTail const& t) {
    constexpr size_t kFixed = 9 << 10;
    constexpr int64_t kEvenly = int64_t{kWarps} * kChunk * kTogether;  // chunks for every warp, in whole stages
    return 0 < t.rows && t.rows <= kMostRows && t.width % kEvenly == 0 && t.hidden % kEvenly == 0 &&
           t.intermediate % kEvenly == 0 && std::max({t.width, t.hidden, t.intermediate}) <= INT_MAX / 2 &&
           t.hidden <= int64_t{kNormVectors} * 8 * kThreads &&
           in_runs_of_eight(t.width, {t.o, t.w_o, t.w_down, t.w_gate_up, t.norm, t.x, t.y}) &&
           shared_of_rows(t, kShallow) + kFixed <= static_cast<size_t>(shared_of_block());
}

void block_tail(BlockTail const& t, cudaStream_t stream) {
    constexpr size_t kFixed = 9 << 10;
    auto const narrow = [](int64_t x) { return static_cast<int32_t>(x); };
    TailArgs const args{
        .products = {{t.w_o, narrow(t.width), narrow(t.hidden / kColumns), 0},
                     {t.w_gate_up, narrow(t.hidden), narrow(t.intermediate / 4), narrow(t.intermediate)},
                     {t.w_down, narrow(t.intermediate), narrow(t.hidden / kColumns), 0}},
        .o = t.o,
        .norm = t.norm,
        .x = t.x,
        .y = t.y,
        .arrived = t.arrived,
        .eps = t.eps,
        .rows = narrow(t.rows),
        .hidden = narrow(t.hidden),
        .skip = knob("PG_SKIP", 1),
        .ahead = knob("PG_AHEAD", 0),
        .pace = knob("PG_PACE", 0)};
    int const stages = knob("PG_TSTAGES", kDeep) == kDeep &&
                               shared_of_rows(t, kDeep) + kFixed <= static_cast<size_t>(shared_of_block())
                           ? kDeep
                           : kShallow;
    auto const of_stages = [&]<bool kHigh>() {
        return stages == kDeep ? tail_kernel<kHigh, kDeep> : tail_kernel<kHigh, kShallow>;
    };
    auto* const chosen = t.rows > 8 ? of_stages.template operator()<true>() : of_stages.template operator()<false>();
    size_t const bytes = shared_of_rows(t, stages);
    allow_shared(chosen, bytes);
    // One thread block each, so that all are there at once.
    follow(chosen, dim3(static_cast<unsigned>(multiprocessors())), dim3(kThreads), bytes, stream, args);
}

}  // namespace perigee::kernels
