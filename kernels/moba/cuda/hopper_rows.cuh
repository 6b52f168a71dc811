// What becomes of a tile's results, straight from the registers of a warpgroup's product (kernels/hopper/product.cuh):
// partial results to scratch memory and back, and the merge of a row's visits with its own block. `half` 0 or 1 is the
// lane's row lane / 4 or the one 8 below; four lanes (a quad) share a row.
#pragma once

#include "kernels/hopper/product.cuh"
#include "kernels/moba/cuda/rows.cuh"

namespace perigee::moba {

__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

inline constexpr int kVisitsInFlight = 2;  ///< partial results of a row that are read together

/// Partial results are private to the forward, so a row's columns lie as the registers hold them, 16 bytes a lane: each
/// access of a quad is 64 bytes in a row. Piece p of a lane has its pairs of columns 8 j + 2 (lane % 4) for j = 4 p ...
template <int D>
__device__ __forceinline__ int64_t piece_of_partial(int32_t slot, int piece) {
    return int64_t{slot} * D + piece * 32 + threadIdx.x % 4 * 8;
}

template <int D>
__device__ __forceinline__ void write_partial(bf16* partial, int32_t slot, float const (&o)[D / 2], int half,
                                              float factor) {
#pragma unroll
    for (int piece = 0; piece < D / 32; ++piece) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int const at = (piece * 4 + i) * 4 + half * 2;
            x[i] = hopper::pack(o[at] * factor, o[at + 1] * factor);
        }
        *reinterpret_cast<uint4*>(partial + piece_of_partial<D>(slot, piece)) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

template <int D>
__device__ __forceinline__ void add_partial(float (&o)[D / 2], int half, uint4 const (&part)[D / 32], float weight) {
#pragma unroll
    for (int piece = 0; piece < D / 32; ++piece) {
        uint32_t const x[4] = {part[piece].x, part[piece].y, part[piece].z, part[piece].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int const at = (piece * 4 + i) * 4 + half * 2;
            o[at] += weight * low(x[i]);
            o[at + 1] += weight * high(x[i]);
        }
    }
}

/// A row of bf16 results in the usual order: the quad trades its pairs of columns for runs of eight.
template <int D>
__device__ __forceinline__ void write_row(bf16* row, float const (&o)[D / 2], int half, float factor, bool there) {
    int const lane = threadIdx.x % 4;
#pragma unroll
    for (int piece = 0; piece < D / 32; ++piece) {
        uint32_t x[4], even[2], odd[2];  // of two columns of eight each: the lower and the upper pair of lanes' words
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int const at = (piece * 4 + i) * 4 + half * 2;
            x[i] = hopper::pack(o[at] * factor, o[at + 1] * factor);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            uint32_t const other = __shfl_xor_sync(kAllLanes, lane % 2 ? x[2 * i] : x[2 * i + 1], 1);
            even[i] = lane % 2 ? other : x[2 * i];
            odd[i] = lane % 2 ? x[2 * i + 1] : other;
        }
        uint32_t const a = __shfl_xor_sync(kAllLanes, lane / 2 ? even[0] : even[1], 2);
        uint32_t const b = __shfl_xor_sync(kAllLanes, lane / 2 ? odd[0] : odd[1], 2);
        uint4 const run = lane / 2 ? make_uint4(a, b, even[1], odd[1]) : make_uint4(even[0], odd[0], a, b);
        if (there) *reinterpret_cast<uint4*>(row + piece * 32 + lane * 8) = run;
    }
}

/// The visits of a row of q (`at`, -1 for none) that left results, `past` blocks before its own.
class Visits {
  public:
    __device__ Visits(AttentionArgs const& a, int32_t at) : at_(at) {
        int32_t const query = at / a.heads, head = at % a.heads;
        first_ =
            ((head / a.group - a.head) * a.wave_rows + (query - a.wave_begin) * a.group + head % a.group) * a.slots;
    }
    __device__ int32_t slot(int s) const { return first_ + s; }
    /// In base 2; -infinity for a slot that is not in use.
    __device__ float lse(AttentionArgs const& a, int32_t past, int s) const {
        if (at_ < 0 || s >= a.slots) return -INFINITY;
        int32_t const choice = a.chosen[int64_t{at_} * a.slots + s];
        return choice >= 0 && choice < past ? a.partial_lse[slot(s)] * kLog2e : -INFINITY;
    }

  private:
    int32_t at_, first_;
};

/// Joins o, normalised but for `sum`, and its lse of base 2, with those of the rows' visits: lse' = log sum exp(lse_j),
/// o' = sum exp(lse_j - lse') o_j. Afterwards o / sum is the result.
template <int D>
__device__ void merge_visits(AttentionArgs const& a, int32_t const (&at)[2], int32_t past, float (&o)[D / 2],
                             float (&sum)[2], float (&lse)[2]) {
    int const quad_lane = threadIdx.x % 4;
    Visits const visits[2] = {{a, at[0]}, {a, at[1]}};
    float total[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float const own = lse[half];
        for (int s = 0; s < a.slots; s += 4) lse[half] = fmaxf(lse[half], visits[half].lse(a, past, s + quad_lane));
        lse[half] = quad_max(lse[half]);
        total[half] = exp2_approx(own - lse[half]);
        float const weight = total[half] / sum[half];
#pragma unroll
        for (int n = 0; n < D / 8; ++n) o[n * 4 + half * 2] *= weight, o[n * 4 + half * 2 + 1] *= weight;
    }
    for (int s = 0; s < a.slots; s += 4) {
        float mine[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            mine[half] = exp2_approx(visits[half].lse(a, past, s + quad_lane) - lse[half]);
#pragma unroll
        for (int i = 0; i < 4; i += kVisitsInFlight) {
            uint4 part[kVisitsInFlight][2][D / 32];
            float weight[kVisitsInFlight][2];
#pragma unroll
            for (int j = 0; j < kVisitsInFlight; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    weight[j][half] = __shfl_sync(kAllLanes, mine[half], i + j, 4);
#pragma unroll
                    for (int piece = 0; piece < D / 32; ++piece) {
                        auto const* const from = a.partial + piece_of_partial<D>(visits[half].slot(s + i + j), piece);
                        part[j][half][piece] = make_uint4(0, 0, 0, 0);
                        if (weight[j][half] != 0) part[j][half][piece] = __ldcs(reinterpret_cast<uint4 const*>(from));
                    }
                }
#pragma unroll
            for (int j = 0; j < kVisitsInFlight; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    total[half] += weight[j][half];
                    add_partial<D>(o, half, part[j][half], weight[j][half]);
                }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        lse[half] += log2_approx(total[half]);
        sum[half] = total[half];
    }
}

}  // namespace perigee::moba
