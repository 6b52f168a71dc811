// Kernel for products of few rows. A persistent grid has one thread block per SM. Each thread block computes tiles of 8
// output columns, from 8 rows of W, one tile after the other. Its warps split k; their partial sums are added in a
// fixed order.
//
// Each thread copies its own weights to its own part of a ring buffer in shared memory, far ahead. The ring buffer
// fills before the preceding kernels have ended and never drains between tiles. Its size decides which kernels share an
// SM: with kDeep stages, two adjacent products of few rows share one, but two thread blocks of a wide down projection
// (8,192 inputs) do not: they would leave another SM idle.
//
// The order of k within an mma is free if both operands use the same one. So the 16 bytes that a lane loads from a row
// feed two mma instructions.
#pragma once

#include <bit>
#include <cstdlib>

#include "kernels/ampere/tile.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/gemv/gemv.h"

namespace perigee::kernels::gemv_detail {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 32;                // elements of k: 16 bytes for each lane of a quad
constexpr int kTogether = 2;              // chunks per stage
constexpr int kDeep = 12, kShallow = 10;  // stages of the ring buffer: 96 KiB, and 80 KiB for rows that need the rest
constexpr int kColumns = 8;               // per tile
constexpr int kMostRows = 16;
constexpr int kPadding = 32;     // of each row of x in shared memory, so that adjacent rows use different banks
constexpr int kNormVectors = 4;  // per thread and row
constexpr size_t ring_bytes(int stages) { return size_t{kTogether} * kThreads * sizeof(uint4) * stages; }

struct Args {
    bf16 const *x, *w, *norm;
    float eps;
    int32_t rows, n, k, tiles;
};

/// L2 policy for data that is read once: evict it first.
__device__ __forceinline__ uint64_t read_once() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/// copy_16 with an L2 cache policy. The rest of the line comes to the L2 cache: the next copy wants it.
__device__ __forceinline__ void copy_16_once(void* to, void const* from, bool there, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(shared_address(to)),
                 "l"(from), "r"(there ? 16 : 0), "l"(policy)
                 : "memory");
}

/// Row of W for the i-th column of a tile, for tiles of adjacent columns.
struct InOrder {
    int32_t n;
    __device__ int64_t row(int32_t tile, int i) const { return min(int64_t{tile} * kColumns + i, int64_t{n} - 1); }
};

/// A warp's share of k: chunks [begin, end).
struct Chunks {
    int begin, end;
    __device__ static Chunks of_warp(int k) {
        int const chunks = k / kChunk, of_warp = (chunks + kWarps - 1) / kWarps;
        int const begin = min(static_cast<int>(threadIdx.x) / 32 * of_warp, chunks);
        return {begin, min(begin + of_warp, chunks)};
    }
};

/// The tiles of a product that this thread block computes, one after the other.
template <class Rows>
class Tiles {
  public:
    __device__ Tiles(Args const& a, Rows const& rows)
        : chunks(Chunks::of_warp(a.k)), a_(a), rows_(rows), tile_(blockIdx.x) {
        find();
    }
    __device__ __forceinline__ void next() {
        tile_ += static_cast<int32_t>(gridDim.x);
        find();
    }

    Chunks chunks;
    bf16 const* from = nullptr;  ///< where this lane begins in its row of W; null: no tile is left

  private:
    __device__ __forceinline__ void find() {
        int const lane = threadIdx.x % 32;
        from = tile_ < a_.tiles ? a_.w + rows_.row(tile_, lane / 4) * a_.k + lane % 4 * 8 : nullptr;
    }

    Args const& a_;
    Rows const& rows_;
    int32_t tile_;
};

/// Streams a warp's chunks of the tiles through this thread's part of the ring buffer, stage by stage.
template <int kStages, class Tiles>
class Weights {
  public:
    __device__ Weights(Tiles const& tiles, uint4* ring)
        : tiles_(tiles), ring_(ring + threadIdx.x), chunk_(tiles.chunks.begin) {
#pragma unroll 1
        for (int i = 1; i < kStages; ++i) fetch();
    }
    /// Waits for the oldest stage and starts the copy of another.
    __device__ __forceinline__ void advance() {
        fetch();
        wait_for_copy_groups<kStages - 1>();
        reading_ = reading_ == kStages - 1 ? 0 : reading_ + 1;
    }
    __device__ __forceinline__ uint4 chunk(int i) const { return ring_[(reading_ * kTogether + i) * kThreads]; }

  private:
    __device__ __forceinline__ void fetch() {
        if (tiles_.from != nullptr) {
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
                copy_16_once(ring_ + (filling_ * kTogether + i) * kThreads, tiles_.from + (chunk_ + i) * kChunk,
                             chunk_ + i < tiles_.chunks.end, once_);
            chunk_ += kTogether;
            if (chunk_ >= tiles_.chunks.end) {
                tiles_.next();
                chunk_ = tiles_.chunks.begin;
            }
        }
        end_copy_group();
        filling_ = filling_ == kStages - 1 ? 0 : filling_ + 1;
    }

    uint64_t const once_ = read_once();
    Tiles tiles_;
    uint4* const ring_;
    int chunk_;
    int filling_ = 0, reading_ = kStages - 1;
};

/// Copies rows [rows, k] to x in shared memory, past the L1 cache: other thread blocks may have written them since this
/// kernel began.
__device__ inline void load_x(bf16 const* from_x, int rows, int k, bf16* x) {
    int const vectors = k / 8, all = rows * vectors, stride = k + kPadding;
    constexpr int kAtOnce = 4;
    for (int from = threadIdx.x; from < all; from += kAtOnce * kThreads) {
        uint4 held[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            int const i = min(from + j * kThreads, all - 1);
            held[j] = __ldcg(reinterpret_cast<uint4 const*>(from_x + int64_t{i} * 8));
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            int const i = from + j * kThreads, row = i / vectors;
            if (i < all) *reinterpret_cast<uint4*>(x + row * stride + (i - row * vectors) * 8) = held[j];
        }
    }
    __syncthreads();
}

/// This thread's part of a norm's weights [k].
__device__ __forceinline__ void load_norm(bf16 const* norm, int k, uint4 (&weights)[kNormVectors]) {
#pragma unroll
    for (int j = 0; j < kNormVectors; ++j)
        if (int const vector = threadIdx.x + j * kThreads; vector < k / 8)
            weights[j] = *reinterpret_cast<uint4 const*>(norm + vector * 8);
}

/// As load_x, normalised. `weights`: of load_norm.
__device__ inline void load_normed(bf16 const* from, int rows, int k, float eps, uint4 const (&weights)[kNormVectors],
                                   bf16* x) {
    __shared__ float squares[kMostRows][kWarps];
    int const vectors = k / 8, stride = k + kPadding, thread = threadIdx.x;
    constexpr int kAtOnce = 4;  // rows
    for (int row = 0; row < rows; row += kAtOnce) {
        float sum[kAtOnce] = {};
#pragma unroll
        for (int j = 0; j < kNormVectors; ++j) {
            int const vector = thread + j * kThreads;
            if (vector >= vectors) break;
            uint4 held[kAtOnce];
#pragma unroll
            for (int r = 0; r < kAtOnce; ++r)
                if (row + r < rows)
                    held[r] = __ldcg(reinterpret_cast<uint4 const*>(from + int64_t{row + r} * k + vector * 8));
#pragma unroll
            for (int r = 0; r < kAtOnce; ++r) {
                if (row + r >= rows) break;
                float values[8];
                unpack(values, std::bit_cast<Run<bf16, 8>>(held[r]));
#pragma unroll
                for (int i = 0; i < 8; ++i) sum[r] += values[i] * values[i];
                *reinterpret_cast<uint4*>(x + (row + r) * stride + vector * 8) = held[r];
            }
        }
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r) {
            float const of_warp = warp_sum(sum[r]);
            if (thread % 32 == 0 && row + r < rows) squares[row + r][thread / 32] = of_warp;
        }
    }
    __syncthreads();
    for (int row = 0; row < rows; ++row) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) sum += squares[row][warp];
        float const rstd = 1 / sqrtf(sum / static_cast<float>(k) + eps);
#pragma unroll
        for (int j = 0; j < kNormVectors; ++j) {
            int const vector = thread + j * kThreads;
            if (vector >= vectors) break;
            auto* const at = reinterpret_cast<uint4*>(x + row * stride + vector * 8);
            float values[8], of_norm[8];
            unpack(values, std::bit_cast<Run<bf16, 8>>(*at));
            unpack(of_norm, std::bit_cast<Run<bf16, 8>>(weights[j]));
#pragma unroll
            for (int i = 0; i < 8; ++i) values[i] *= rstd * of_norm[i];
            *at = std::bit_cast<uint4>(pack<bf16>(values));
        }
    }
    __syncthreads();
}

/// Of sums in fp32.
__device__ __forceinline__ bf16 swiglu(float gate_sum, float up_sum) {
    float const gate = widen(narrow<bf16>(gate_sum)), up = widen(narrow<bf16>(up_sum));
    return narrow<bf16>(up * (gate * (1 / (1 + __expf(-gate)))));
}

/// sums [16, 8] += 16 rows of x times a warp's chunks of a tile. Rows 8 to 15 only if kHigh.
template <bool kHigh, class Weights>
__device__ __forceinline__ void multiply(float (&sums)[4], Weights& weights, bf16 const* x, int rows, int stride,
                                         Chunks const& chunks) {
    int const lane = threadIdx.x % 32, row = lane / 4;
    bool const low_there = row < rows, high_there = kHigh && row + 8 < rows;
    bf16 const* const low = x + (low_there ? row : 0) * stride + lane % 4 * 8;
    bf16 const* const high = x + (high_there ? row + 8 : 0) * stride + lane % 4 * 8;
    uint4 const zero = make_uint4(0, 0, 0, 0);
    for (int chunk = chunks.begin; chunk < chunks.end; chunk += kTogether) {
        weights.advance();
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            int const at = min(chunk + i, chunks.end - 1) * kChunk;  // weights beyond the end are zero
            uint4 const w = weights.chunk(i);
            uint4 const p = low_there ? *reinterpret_cast<uint4 const*>(low + at) : zero;
            uint4 const q = high_there ? *reinterpret_cast<uint4 const*>(high + at) : zero;
            uint32_t const first[4] = {p.x, q.x, p.y, q.y}, second[4] = {p.z, q.z, p.w, q.w};
            ampere::mma(sums, first, w.x, w.y);
            ampere::mma(sums, second, w.z, w.w);
        }
    }
}

/// A product of x in shared memory: all its tiles of this thread block. Whole warps call finish(row, tile, column,
/// value, other, there) with the sums of a tile; `other` is the sum of column ^ 4.
template <bool kHigh, class Weights, class Finish>
__device__ __forceinline__ void compute_tiles(float (&parts)[2][kWarps][kHigh ? 16 : 8][kColumns], int& turn,
                                              Weights& weights, bf16 const* x, int rows, int k, int32_t tiles,
                                              Finish const& finish) {
    constexpr int kRows = kHigh ? 16 : 8;
    int const thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    Chunks const chunks = Chunks::of_warp(k);
    for (int32_t tile = blockIdx.x; tile < tiles; tile += static_cast<int32_t>(gridDim.x), turn ^= 1) {
        float sums[4] = {};
        multiply<kHigh>(sums, weights, x, rows, k + kPadding, chunks);
        *reinterpret_cast<float2*>(&parts[turn][warp][lane / 4][lane % 4 * 2]) = make_float2(sums[0], sums[1]);
        if (kHigh)
            *reinterpret_cast<float2*>(&parts[turn][warp][(lane / 4 + 8) % kRows][lane % 4 * 2]) =
                make_float2(sums[2], sums[3]);
        __syncthreads();
        if (thread >= kRows * kColumns) continue;
        int const row = thread / kColumns, column = thread % kColumns;
        float sum = parts[turn][0][row][column];
#pragma unroll
        for (int other = 1; other < kWarps; ++other) sum += parts[turn][other][row][column];
        finish(row, tile, column, sum, __shfl_xor_sync(kAllLanes, sum, 4), row < rows);
    }
}

/// `Finish` is the epilogue. It has a member `Rows rows` and finish(), as compute_tiles() calls it, which writes only
/// if `there`.
template <bool kNorm, bool kHigh, int kStages, class Finish>
__global__ void __launch_bounds__(kThreads, 2) kernel(Args const a, Finish const f) {
    __shared__ alignas(16) float parts[2][kWarps][kHigh ? 16 : 8][kColumns];
    let_next_begin();
    auto* const ring = reinterpret_cast<uint4*>(ampere::dynamic_shared());
    auto* const x = reinterpret_cast<bf16*>(ampere::dynamic_shared() + ring_bytes(kStages));
    using TilesOf = Tiles<decltype(f.rows)>;
    Weights<kStages, TilesOf> weights(TilesOf(a, f.rows), ring);
    if constexpr (kNorm) {
        uint4 of_norm[kNormVectors];
        load_norm(a.norm, a.k, of_norm);
        wait_for_previous();
        load_normed(a.x, a.rows, a.k, a.eps, of_norm, x);
    } else {
        wait_for_previous();
        load_x(a.x, a.rows, a.k, x);
    }
    int turn = 0;
    compute_tiles<kHigh>(parts, turn, weights, x, a.rows, a.k, a.tiles, [&](auto... all) { f.finish(all...); });
}

/// Dynamic shared memory: the ring buffer and x.
inline size_t shared_bytes(Gemv const& g, int stages) {
    return ring_bytes(stages) + static_cast<size_t>(g.rows * (g.k + kPadding)) * sizeof(bf16);
}
/// Whether that fits, beside the partial sums.
inline bool fits(Gemv const& g, int stages) {
    constexpr size_t kFixed = 9 << 10;
    return shared_bytes(g, stages) + kFixed <= static_cast<size_t>(shared_of_block());
}

template <class Finish>
void run(Gemv const& g, int64_t tiles, Finish const& finish, cudaStream_t stream) {
    Args const args{g.x,
                    g.w,
                    g.norm,
                    g.eps,
                    static_cast<int32_t>(g.rows),
                    static_cast<int32_t>(g.n),
                    static_cast<int32_t>(g.k),
                    static_cast<int32_t>(tiles)};
    char const* const depth = getenv("PG_STAGES");
    int const stages = fits(g, kDeep) && (depth == nullptr || atoi(depth) == kDeep) ? kDeep : kShallow;
    auto const of_stages = [&]<bool kNorm, bool kHigh>() {
        return stages == kDeep ? kernel<kNorm, kHigh, kDeep, Finish> : kernel<kNorm, kHigh, kShallow, Finish>;
    };
    auto const pick = [&]<bool kNorm>() {
        return g.rows > 8 ? of_stages.template operator()<kNorm, true>()
                          : of_stages.template operator()<kNorm, false>();
    };
    auto* const chosen = g.norm != nullptr ? pick.template operator()<true>() : pick.template operator()<false>();
    size_t const bytes = shared_bytes(g, stages);
    allow_shared(chosen, bytes);
    follow(chosen, dim3(static_cast<unsigned>(std::min(tiles, multiprocessors()))), dim3(kThreads), bytes, stream, args,
           finish);
}

}  // namespace perigee::kernels::gemv_detail
