// Between two kernels a multiprocessor waits until the first is done and its results are visible, and streams no
// weights. Between two products of this kernel it waits for the other multiprocessors alone, and its ring buffer goes
// on filling. While attention runs before it, the ring buffer fills with as much as shared memory holds.
#include "kernels/decode/block_tail.h"

#include <cstdlib>

#include "kernels/decode/heads.cuh"
#include "kernels/gemv/stream.cuh"

namespace perigee::decode {

namespace {

using namespace gemv_detail;

constexpr int kProducts = 4;

/// Column i of tile t is row t / (size / 8) size + t % (size / 8) 4 + i / 4 (size / 2) + i % 4 of W: heads of `size`
/// rows. Of size 8, a tile has eight adjacent rows; of twice the intermediate size, four gates and their ups.
struct Product {
    bf16 const* w;
    int32_t k, tiles, size;
};

struct TailArgs {
    Product products[kProducts];
    int32_t count;
    int32_t rows, hidden, intermediate;
    bf16 const *o, *norm, *next_norm;
    bf16 *x, *y;
    unsigned* arrived;
    float eps, next_eps;
    Heads heads;
};

__device__ __forceinline__ uint4 load_shared(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from));
    return x;
}

/// Streams the weights of all products through this thread's part of the ring buffer. Every warp has the same share of
/// k, in whole stages.
template <int kStages>
class Stream {
  public:
    __device__ Stream(TailArgs const& a, uint4* ring) : a_(a), base_(shared_address(ring + threadIdx.x)) {
        asm volatile("" : "+r"(base_));  // stays in a register
        filling_ = base_;
        reading_ = base_ + (kStages - 1) * kStageBytes;
        begin(0);
#pragma unroll 1
        for (int i = 1; i < kStages; ++i) fetch();
    }
    /// Waits for the oldest stage and starts the copy of another.
    __device__ __forceinline__ void advance() {
        fetch();
        wait_for_copy_groups<kStages - 1>();
        reading_ = after(reading_);
    }
    __device__ __forceinline__ uint4 chunk(int i) const { return load_shared(reading_ + i * kChunkStep); }

  private:
    static constexpr uint32_t kChunkStep = kThreads * sizeof(uint4), kStageBytes = kTogether * kChunkStep;
    static constexpr int kShareOfStage = kTogether * kChunk * static_cast<int>(sizeof(bf16));  // bytes of a row

    __device__ __forceinline__ uint32_t after(uint32_t at) const {
        return at == base_ + (kStages - 1) * kStageBytes ? base_ : at + kStageBytes;
    }
    __device__ __forceinline__ void fetch() {
        if (tiles_left_ > 0) {
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
                asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(
                                 filling_ + i * kChunkStep),
                             "l"(at_ + i * kShareOfStage / kTogether), "l"(once_)
                             : "memory");
            at_ += kShareOfStage;
            if (--stages_left_ == 0) next_tile();
        }
        end_copy_group();
        filling_ = after(filling_);
    }
    __device__ __forceinline__ void next_tile() {
        stages_left_ = stages_;
        at_ += step_, part_ += part_step_;
        if (part_ >= parts_) part_ -= parts_, at_ += wrap_;
        if (--tiles_left_ == 0) begin(product_ + 1);
    }
    /// Goes to this thread block's first tile of the first product from `from` on that has one.
    __device__ __forceinline__ void begin(int from) {
        int const lane = threadIdx.x % 32, i = lane / 4, block = static_cast<int>(blockIdx.x),
                  blocks = static_cast<int>(gridDim.x);
#pragma unroll 1
        for (product_ = from; product_ < a_.count; ++product_) {
            Product const& p = a_.products[product_];
            if (block >= p.tiles) continue;
            tiles_left_ = (p.tiles - block - 1) / blocks + 1;
            int64_t const row_bytes = int64_t{p.k} * static_cast<int>(sizeof(bf16));
            int const share = static_cast<int>(row_bytes) / kWarps;
            stages_left_ = stages_ = share / kShareOfStage;
            parts_ = p.size / kColumns, part_ = block % parts_, part_step_ = blocks % parts_;
            int64_t const row = int64_t{block / parts_} * p.size + part_ * 4 + i / 4 * (p.size / 2) + i % 4;
            at_ = reinterpret_cast<char const*>(p.w) + row * row_bytes + threadIdx.x / 32 * share + lane % 4 * 16;
            step_ = (int64_t{blocks / parts_} * p.size + part_step_ * 4) * row_bytes - share;
            wrap_ = (p.size - parts_ * 4) * row_bytes;
            return;
        }
    }

    uint64_t const once_ = read_once();
    TailArgs const& a_;
    uint32_t base_, filling_, reading_;
    char const* at_ = nullptr;
    int64_t step_ = 0, wrap_ = 0;
    int32_t part_ = 0, part_step_ = 0, parts_ = 1, stages_ = 0, stages_left_ = 0, tiles_left_ = 0;
    int product_ = 0;
};

/// Stands in shared memory for rows that are not there.
struct Zeros {
    uint4 vectors[3 * kTogether * kChunk / 8 / 2];
};

/// All this thread block's tiles of a product of x [rows, k] in shared memory. Whole warps call finish(row, tile,
/// column, value, other, there) with the sums of a tile; `other` is the sum of column ^ 4.
template <bool kHigh, class Stream, class Finish>
__device__ __forceinline__ void compute_tiles(float (&parts)[2][kWarps][kHigh ? 16 : 8][kColumns], int& turn,
                                              Stream& weights, uint32_t x, uint32_t zeros, int rows,
                                              Product const& product, Finish const& finish) {
    constexpr int kRows = kHigh ? 16 : 8;
    constexpr uint32_t kStep = kTogether * kChunk * sizeof(bf16);
    int const thread = threadIdx.x, lane = thread % 32, warp = thread / 32, row = lane / 4;
    uint32_t const stride = static_cast<uint32_t>(product.k + kPadding) * sizeof(bf16),
                   share = static_cast<uint32_t>(product.k) / kWarps * sizeof(bf16), column = lane % 4 * 16;
    int const stages = static_cast<int>(share / kStep);
    bool const low_there = row < rows, high_there = kHigh && row + 8 < rows;
    // Rows that are not there use the other banks than row 0.
    uint32_t const none = zeros + kStep / 2 + column;
    uint32_t const low_begin = low_there ? x + row * stride + warp * share + column : none,
                   high_begin = high_there ? x + (row + 8) * stride + warp * share + column : none,
                   low_step = low_there ? kStep : 0, high_step = high_there ? kStep : 0;
    for (int32_t tile = blockIdx.x; tile < product.tiles; tile += static_cast<int32_t>(gridDim.x), turn ^= 1) {
        float sums[4] = {};
        uint32_t low = low_begin, high = high_begin;
#pragma unroll 2
        for (int stage = 0; stage < stages; ++stage) {
            weights.advance();
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                uint4 const w = weights.chunk(i), p = load_shared(low + i * kStep / kTogether);
                uint4 const q = kHigh ? load_shared(high + i * kStep / kTogether) : make_uint4(0, 0, 0, 0);
                uint32_t const first[4] = {p.x, q.x, p.y, q.y}, second[4] = {p.z, q.z, p.w, q.w};
                ampere::mma(sums, first, w.x, w.y);
                ampere::mma(sums, second, w.z, w.w);
            }
            low += low_step, high += high_step;
        }
        *reinterpret_cast<float2*>(&parts[turn][warp][lane / 4][lane % 4 * 2]) = make_float2(sums[0], sums[1]);
        if (kHigh)
            *reinterpret_cast<float2*>(&parts[turn][warp][(lane / 4 + 8) % kRows][lane % 4 * 2]) =
                make_float2(sums[2], sums[3]);
        __syncthreads();
        if (thread >= kRows * kColumns) continue;
        int const of = thread / kColumns, at = thread % kColumns;
        float sum = parts[turn][0][of][at];
#pragma unroll
        for (int other = 1; other < kWarps; ++other) sum += parts[turn][other][of][at];
        finish(of, tile, at, sum, __shfl_xor_sync(kAllLanes, sum, 4), of < rows);
    }
}

/// Waits until all thread blocks have come here for the `time`-th of `times` times. `arrived` is zero before the first
/// and after the last. A wait of two seconds is an error: then they are not all on the GPU.
__device__ __forceinline__ void await_all(unsigned* arrived, unsigned time, unsigned times) {
    constexpr uint64_t kMostNanoseconds = 2'000'000'000;
    auto const nanoseconds = [] {
        uint64_t now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        return now;
    };
    __syncthreads();  // what this thread block has written
    if (threadIdx.x == 0) {
        unsigned const blocks = gridDim.x;
        __threadfence();
        atomicInc(arrived, times * blocks - 1);
        uint64_t const began = nanoseconds();
        for (unsigned polls = 1;; ++polls) {
            unsigned now;
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
            if (time < times ? now >= time * blocks : now == 0) break;
            if (polls % 1024 == 0 && nanoseconds() - began > kMostNanoseconds) __trap();
        }
    }
    __syncthreads();
}

template <bool kHigh, int kStages>
__global__ void __launch_bounds__(kThreads, 2) tail_kernel(__grid_constant__ TailArgs const a) {
    __shared__ alignas(16) float parts[2][kWarps][kHigh ? 16 : 8][kColumns];
    __shared__ alignas(128) Zeros zeros;
    let_next_begin();
    auto* const ring = reinterpret_cast<uint4*>(ampere::dynamic_shared());
    auto* const x = reinterpret_cast<bf16*>(ampere::dynamic_shared() + ring_bytes(kStages));
    Stream<kStages> weights(a, ring);
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(zeros) / sizeof(uint4)); i += kThreads)
        zeros.vectors[i] = make_uint4(0, 0, 0, 0);
    int turn = 0;
    unsigned const times = a.count - 1;
    auto const compute = [&](int product, auto finish) {
        compute_tiles<kHigh>(parts, turn, weights, shared_address(x), shared_address(&zeros), a.rows,
                             a.products[product], finish);
    };
    auto const add_to_x = [&](int row, int32_t tile, int column, float value, float, bool there) {
        if (!there) return;
        bf16* const to = a.x + row * int64_t{a.hidden} + int64_t{tile} * kColumns + column;
        auto const before = std::bit_cast<bf16>(__ldcg(reinterpret_cast<uint16_t const*>(to)));
        *to = narrow<bf16>(widen(before) + value);
    };
    wait_for_previous();
    load_x(a.o, a.rows, a.products[0].k, x);
    compute(0, add_to_x);
    uint4 of_norm[kNormVectors];
    load_norm(a.norm, a.hidden, of_norm);
    await_all(a.arrived, 1, times);
    load_normed(a.x, a.rows, a.hidden, a.eps, of_norm, x);
    compute(1, [&](int row, int32_t tile, int column, float value, float other, bool there) {
        if (there && column < 4) a.y[row * int64_t{a.intermediate} + int64_t{tile} * 4 + column] = swiglu(value, other);
    });
    await_all(a.arrived, 2, times);
    load_x(a.y, a.rows, a.products[2].k, x);
    compute(2, add_to_x);
    if (a.count < kProducts) return;
    load_norm(a.next_norm, a.hidden, of_norm);
    await_all(a.arrived, 3, times);
    load_normed(a.x, a.rows, a.hidden, a.next_eps, of_norm, x);
    compute(3, [&](auto... all) { a.heads.finish(all...); });
}

constexpr size_t kFixedBytes = 10 << 10;

size_t shared_of_rows(BlockTail const& t, int stages) {
    int64_t const widest = std::max({t.width, t.hidden, t.intermediate});
    return ring_bytes(stages) + static_cast<size_t>(t.rows * (widest + kPadding)) * sizeof(bf16);
}
bool fits(BlockTail const& t, int stages) {
    return shared_of_rows(t, stages) + kFixedBytes <= static_cast<size_t>(shared_of_block());
}

TailArgs args_of(BlockTail const& t) {
    auto const narrow = [](int64_t x) { return static_cast<int32_t>(x); };
    TailArgs args{.products = {{t.w_o, narrow(t.width), narrow(t.hidden / kColumns), kColumns},
                               {t.w_gate_up, narrow(t.hidden), narrow(t.intermediate / 4), narrow(2 * t.intermediate)},
                               {t.w_down, narrow(t.intermediate), narrow(t.hidden / kColumns), kColumns}},
                  .count = t.next != nullptr ? kProducts : kProducts - 1,
                  .rows = narrow(t.rows),
                  .hidden = narrow(t.hidden),
                  .intermediate = narrow(t.intermediate),
                  .o = t.o,
                  .norm = t.norm,
                  .next_norm = nullptr,
                  .x = t.x,
                  .y = t.y,
                  .arrived = t.arrived,
                  .eps = t.eps,
                  .next_eps = 0,
                  .heads = {}};
    if (t.next != nullptr) {
        Gemv const& product = t.next->product;
        args.products[3] = {product.w, narrow(product.k), narrow(product.n / kColumns), t.next->cache.head_dim};
        args.next_norm = product.norm, args.next_eps = product.eps, args.heads = heads_of(*t.next);
    }
    return args;
}

int stages_of(BlockTail const& t) {
    char const* const value = getenv("PG_TSTAGES");
    int const wanted = value != nullptr ? atoi(value) : 16;
    for (int const stages : {18, 16, 14, 12})
        if (stages <= wanted && fits(t, stages)) return stages;
    return kShallow;
}

}  // namespace

bool takes_block_tail(BlockTail const& t) {
    constexpr int64_t kEvenly = int64_t{kWarps} * kChunk * kTogether;  // chunks for every warp, in whole stages
    return 0 < t.rows && t.rows <= kMostRows && t.width % kEvenly == 0 && t.hidden % kEvenly == 0 &&
           t.intermediate % kEvenly == 0 && std::max({t.width, t.hidden, t.intermediate}) <= INT_MAX / 2 &&
           t.hidden <= int64_t{kNormVectors} * 8 * kThreads &&
           in_runs_of_eight(t.width, {t.o, t.w_o, t.w_down, t.w_gate_up, t.norm, t.x, t.y}) && fits(t, kShallow);
}

void block_tail(BlockTail const& t, cudaStream_t stream) {
    int const stages = stages_of(t);
    auto const of_stages = [&]<bool kHigh>() {
        switch (stages) {
            case 18:
                return tail_kernel<kHigh, 18>;
            case 16:
                return tail_kernel<kHigh, 16>;
            case 14:
                return tail_kernel<kHigh, 14>;
            case 12:
                return tail_kernel<kHigh, 12>;
            default:
                return tail_kernel<kHigh, kShallow>;
        }
    };
    auto* const chosen = t.rows > 8 ? of_stages.template operator()<true>() : of_stages.template operator()<false>();
    size_t const bytes = shared_of_rows(t, stages);
    allow_shared(chosen, bytes);
    // One thread block each, so that all are there at once.
    follow(chosen, dim3(static_cast<unsigned>(multiprocessors())), dim3(kThreads), bytes, stream, args_of(t));
}

}  // namespace perigee::decode
