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

/// Streams a warp's chunks of k through this thread's part of the ring buffer, stage by stage, tile after tile.
template <int kStages, class Rows>
class Weights {
  public:
    __device__ Weights(Args const& a, Rows const& rows, uint4* ring, int begin, int end)
        : a_(a), rows_(rows), ring_(ring + threadIdx.x), begin_(begin), end_(end), chunk_(begin), tile_(blockIdx.x) {
        find_row();
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
    __device__ __forceinline__ void find_row() {
        int const lane = threadIdx.x % 32;
        if (tile_ < a_.tiles) from_ = a_.w + rows_.row(tile_, lane / 4) * a_.k + lane % 4 * 8;
    }
    __device__ __forceinline__ void fetch() {
        if (tile_ < a_.tiles) {
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
                copy_16_once(ring_ + (filling_ * kTogether + i) * kThreads, from_ + (chunk_ + i) * kChunk,
                             chunk_ + i < end_, once_);
            chunk_ += kTogether;
            if (chunk_ >= end_) {
                chunk_ = begin_;
                tile_ += static_cast<int32_t>(gridDim.x);
                find_row();
            }
        }
        end_copy_group();
        filling_ = filling_ == kStages - 1 ? 0 : filling_ + 1;
    }

    uint64_t const once_ = read_once();
    Args const& a_;
    Rows const& rows_;
    uint4* const ring_;
    int const begin_, end_;
    int chunk_;
    int32_t tile_;
    bf16 const* from_ = nullptr;
    int filling_ = 0, reading_ = kStages - 1;
};

/// Copies the rows of x to shared memory.
__device__ inline void load_x(Args const& a, bf16* x) {
    int const vectors = a.k / 8, all = a.rows * vectors, stride = a.k + kPadding;
    constexpr int kAtOnce = 4;
    for (int from = threadIdx.x; from < all; from += kAtOnce * kThreads) {
        uint4 held[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            int const i = min(from + j * kThreads, all - 1);
            held[j] = *reinterpret_cast<uint4 const*>(a.x + int64_t{i} * 8);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            int const i = from + j * kThreads, row = i / vectors;
            if (i < all) *reinterpret_cast<uint4*>(x + row * stride + (i - row * vectors) * 8) = held[j];
        }
    }
    __syncthreads();
}

/// Copies the rows of x to shared memory, normalised. `weights`: norm weights for this thread's columns.
__device__ inline void load_normed(Args const& a, uint4 const (&weights)[kNormVectors], bf16* x) {
    __shared__ float squares[kMostRows][kWarps];
    int const vectors = a.k / 8, stride = a.k + kPadding, thread = threadIdx.x;
    constexpr int kAtOnce = 4;  // rows
    for (int row = 0; row < a.rows; row += kAtOnce) {
        float sum[kAtOnce] = {};
#pragma unroll
        for (int j = 0; j < kNormVectors; ++j) {
            int const vector = thread + j * kThreads;
            if (vector >= vectors) break;
            uint4 held[kAtOnce];
#pragma unroll
            for (int r = 0; r < kAtOnce; ++r)
                if (row + r < a.rows)
                    held[r] = *reinterpret_cast<uint4 const*>(a.x + int64_t{row + r} * a.k + vector * 8);
#pragma unroll
            for (int r = 0; r < kAtOnce; ++r) {
                if (row + r >= a.rows) break;
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
            if (thread % 32 == 0 && row + r < a.rows) squares[row + r][thread / 32] = of_warp;
        }
    }
    __syncthreads();
    for (int row = 0; row < a.rows; ++row) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) sum += squares[row][warp];
        float const rstd = 1 / sqrtf(sum / static_cast<float>(a.k) + a.eps);
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

/// sums [16, 8] of 16 rows of x times a warp's chunks of a tile. Rows 8 to 15 only if kHigh. Two accumulators halve
/// the wait of one mma for the one before.
template <bool kHigh, int kStages, class Rows>
__device__ __forceinline__ void multiply(float (&sums)[4], Weights<kStages, Rows>& weights, bf16 const* x, int rows,
                                         int stride, int begin, int end) {
    int const lane = threadIdx.x % 32, row = lane / 4;
    bool const low_there = row < rows, high_there = kHigh && row + 8 < rows;
    bf16 const* const low = x + (low_there ? row : 0) * stride + lane % 4 * 8;
    bf16 const* const high = x + (high_there ? row + 8 : 0) * stride + lane % 4 * 8;
    uint4 const zero = make_uint4(0, 0, 0, 0);
    float partial[2][4] = {};
    for (int chunk = begin; chunk < end; chunk += kTogether) {
        weights.advance();
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            int const at = min(chunk + i, end - 1) * kChunk;  // weights beyond the end are zero
            uint4 const w = weights.chunk(i);
            uint4 const p = low_there ? *reinterpret_cast<uint4 const*>(low + at) : zero;
            uint4 const q = high_there ? *reinterpret_cast<uint4 const*>(high + at) : zero;
            uint32_t const first[4] = {p.x, q.x, p.y, q.y}, second[4] = {p.z, q.z, p.w, q.w};
            ampere::mma(partial[0], first, w.x, w.y);
            ampere::mma(partial[1], second, w.z, w.w);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = partial[0][i] + partial[1][i];
}

struct Nothing {};

/// `Finish` is the epilogue, with a member `Rows rows`. Its reads are under way long before their use:
///   of_row(row, there)                           once, while the preceding kernels may run: of what no kernel writes
///   prepare(of_row, row, tile, column, there)    while the tile before is computed
///   finish(prepared, row, tile, column, value, other)
/// by whole warps with the sums of a tile, `other` that of column ^ 4. finish() writes only what was `there`.
template <bool kNorm, bool kHigh, int kStages, class Finish>
__global__ void __launch_bounds__(kThreads, 2) kernel(Args const a, Finish const f) {
    constexpr int kRows = kHigh ? 16 : 8;
    __shared__ alignas(16) float parts[2][kWarps][kRows][kColumns];
    let_next_begin();
    auto* const ring = reinterpret_cast<uint4*>(ampere::dynamic_shared());
    auto* const x = reinterpret_cast<bf16*>(ampere::dynamic_shared() + ring_bytes(kStages));
    int const thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    int const row = thread / kColumns, column = thread % kColumns;  // of a tile's results, in the first warps
    bool const there = row < a.rows;
    int const chunks = a.k / kChunk, of_warp = (chunks + kWarps - 1) / kWarps;
    int const begin = min(warp * of_warp, chunks), end = min(begin + of_warp, chunks);
    Weights<kStages, decltype(f.rows)> weights(a, f.rows, ring, begin, end);
    auto const of_row = f.of_row(row, there);
    auto const prepare = [&](int32_t tile) { return f.prepare(of_row, row, tile, column, there && tile < a.tiles); };
    uint4 of_norm[kNormVectors];
    if constexpr (kNorm) {
#pragma unroll
        for (int j = 0; j < kNormVectors; ++j)
            if (int const vector = thread + j * kThreads; vector < a.k / 8)
                of_norm[j] = *reinterpret_cast<uint4 const*>(a.norm + vector * 8);
    }
    wait_for_previous();
    int const tiles_at_once = static_cast<int>(gridDim.x);
    auto next = prepare(static_cast<int32_t>(blockIdx.x));
    if constexpr (kNorm)
        load_normed(a, of_norm, x);
    else
        load_x(a, x);
    int turn = 0;
    for (int32_t tile = blockIdx.x; tile < a.tiles; tile += tiles_at_once, turn ^= 1) {
        auto const prepared = next;
        next = prepare(tile + tiles_at_once);
        float sums[4];
        multiply<kHigh>(sums, weights, x, a.rows, a.k + kPadding, begin, end);
        *reinterpret_cast<float2*>(&parts[turn][warp][lane / 4][lane % 4 * 2]) = make_float2(sums[0], sums[1]);
        if (kHigh)
            *reinterpret_cast<float2*>(&parts[turn][warp][(lane / 4 + 8) % kRows][lane % 4 * 2]) =
                make_float2(sums[2], sums[3]);
        __syncthreads();
        if (thread >= kRows * kColumns) continue;
        float sum = parts[turn][0][row][column];
#pragma unroll
        for (int other = 1; other < kWarps; ++other) sum += parts[turn][other][row][column];
        f.finish(prepared, row, tile, column, sum, __shfl_xor_sync(kAllLanes, sum, 4));
    }
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
    int const stages = fits(g, kDeep) ? kDeep : kShallow;
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
    follow("gemv", chosen, dim3(static_cast<unsigned>(std::min(tiles, multiprocessors()))), dim3(kThreads), bytes,
           stream, args, finish);
}

}  // namespace perigee::kernels::gemv_detail
