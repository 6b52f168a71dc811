// Results of a tile from the registers of a warpgroup's product: partials to scratch memory and back, and the merge of
// a row's partials with its local block. `half` is the lane's row lane / 4 or the one 8 below; a quad of lanes shares a
// row.
#pragma once

#include "kernels/block_sparse_attention/query_tiles.cuh"
#include "kernels/hopper/tile.cuh"

namespace perigee::block_sparse {

/// Partials keep the registers' order of columns, 16 bytes a lane: a quad accesses 64 bytes in a row. Vector p of a
/// lane has its pairs of columns 8 j + 2 (lane % 4), j = 4 p ...
template <int D>
__device__ __forceinline__ int64_t vector_of_partial(int32_t slot, int vector) {
    return int64_t{slot} * D + vector * 32 + threadIdx.x % 4 * 8;
}

template <int D>
using PackedRow = uint4[D / 32];  ///< a lane's part

template <int D>
__device__ __forceinline__ void pack_partial(PackedRow<D>& packed, float const (&o)[D / 2], int half, float factor) {
#pragma unroll
    for (int vector = 0; vector < D / 32; ++vector) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int const at = (vector * 4 + i) * 4 + half * 2;
            x[i] = pack(o[at] * factor, o[at + 1] * factor);
        }
        packed[vector] = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/// Streaming stores: rows of q are to stay in the cache.
template <int D>
__device__ __forceinline__ void write_partial(bf16* to, PackedRow<D> const& packed) {
#pragma unroll
    for (int vector = 0; vector < D / 32; ++vector) __stcs(reinterpret_cast<uint4*>(to + vector * 32), packed[vector]);
}

template <int D>
__device__ __forceinline__ void add_partial(float (&o)[D / 2], int half, uint4 const (&part)[D / 32], float weight) {
#pragma unroll
    for (int vector = 0; vector < D / 32; ++vector) {
        uint32_t const x[4] = {part[vector].x, part[vector].y, part[vector].z, part[vector].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int const at = (vector * 4 + i) * 4 + half * 2;
            o[at] += weight * low(x[i]);
            o[at + 1] += weight * high(x[i]);
        }
    }
}

/// A lane's two rows of a local tile, the second 8 below the first.
struct LocalRows {
    int32_t at[2];       ///< in q, -1 for none
    int32_t first_slot;  ///< where the first row's partials begin
    int32_t past;        ///< blocks of the document before theirs
};

/// What the partials of a lane's rows weigh. Lane i of the quad knows slots i, i + 4, ...; those of the first eight are
/// read at once, ahead of their use.
class PartialWeights {
  public:
    PartialWeights() = default;
    __device__ PartialWeights(AttentionArgs const& a, LocalRows const& rows) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 2; ++i) ahead_[half][i] = Partial(a, rows, half, i * 4);
    }
    /// Log-sum-exp of base 2 of the lane's slot among s ... s + 3; -infinity for one that is not in use.
    __device__ float lse(AttentionArgs const& a, LocalRows const& rows, int half, int s) const {
        Partial partial;
        partial.selection = s == 0 ? ahead_[half][0].selection : ahead_[half][1].selection;
        partial.natural = s == 0 ? ahead_[half][0].natural : ahead_[half][1].natural;
        if (s >= 8) partial = Partial(a, rows, half, s);
        bool const used = partial.selection >= 0 && partial.selection < rows.past;
        return used ? partial.natural * kLog2e : -INFINITY;
    }

  private:
    struct Partial {
        int32_t selection;
        float natural;

        Partial() = default;
        __device__ Partial(AttentionArgs const& a, LocalRows const& rows, int half, int s) : selection(-1), natural(0) {
            s += threadIdx.x % 4;
            if (rows.at[half] < 0 || s >= a.slots) return;
            selection = a.chosen[int64_t{rows.at[half]} * a.slots + s];
            natural = a.partial_lse[rows.first_slot + half * 8 * a.slots + s];
        }
    };

    Partial ahead_[2][2];
};

/// Brings the partial results of local rows, slot by slot and kStages slots ahead, into shared memory that is this
/// thread's alone: kStages x kBytes for every 256 threads.
template <int D, int kStages>
class PartialRing {
  public:
    static constexpr int kBytes = 256 * 2 * D / 4 * static_cast<int>(sizeof(bf16));

    __device__ explicit PartialRing(unsigned char* memory) : memory_(shared_address(memory) + threadIdx.x % 256 * 16) {}

    /// Slot s of the rows; past the last slot, and for rows that are not there, there is nothing to copy.
    __device__ void start(AttentionArgs const& a, LocalRows const& rows, int s) {
        if (s < a.slots)
#pragma unroll
            for (int i = 0; i < kVectors; ++i) {
                int const half = i / (D / 32);
                bool const there = rows.at[half] >= 0;
                int32_t const slot = there ? rows.first_slot + half * 8 * a.slots + s : 0;
                hopper::copy_vector(vector(i), a.partial + vector_of_partial<D>(slot, i % (D / 32)), there);
            }
        end_copy_group();
        stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    }
    /// Waits for the oldest slot, which the next start overwrites.
    __device__ void wait() const { wait_for_copy_groups<kStages - 1>(); }
    __device__ uint4 read(int half, int i) const {
        uint4 x;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(vector(half * (D / 32) + i))
                     : "memory");
        return x;
    }

  private:
    static constexpr int kVectors = 2 * D / 32;

    __device__ uint32_t vector(int i) const { return memory_ + (stage_ * kVectors + i) * 256 * 16; }

    uint32_t memory_;
    int stage_ = 0;
};

/// Merges the local block's o and lse with the rows' partials: lse' = log2 sum exp2(lse_j), o' = sum exp2(lse_j - lse')
/// o_j, every lse in base 2. Before and after, o / sum is the normalised output. Afterwards the ring holds the first
/// slots of `next`.
template <int D, int kStages>
__device__ void merge_partials(AttentionArgs const& a, PartialRing<D, kStages>& ring, LocalRows const& rows,
                               LocalRows const& next, PartialWeights const& weights, float (&o)[D / 2], float (&sum)[2],
                               float (&lse)[2]) {
    float mine[2] = {0, 0}, base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float const local = lse[half];
        for (int s = 0; s < a.slots; s += 4) lse[half] = fmaxf(lse[half], weights.lse(a, rows, half, s));
        lse[half] = quad_max(lse[half]);
        base[half] = finite_base(lse[half]);
        float const weight = exp2_approx(local - base[half]), factor = weight * inverse_of_sum(sum[half]);
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int i = n * 4 + half * 2; i < n * 4 + half * 2 + 2; ++i) o[i] *= factor;
        sum[half] = weight;
    }
    int const steps = max(a.slots, kStages);
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
        ring.wait();
        if (s < a.slots) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (s % 4 == 0) mine[half] = exp2_approx(weights.lse(a, rows, half, s) - base[half]);
                float const weight = __shfl_sync(kAllLanes, mine[half], s % 4, 4);
                sum[half] += weight;
                uint4 part[D / 32];
#pragma unroll
                for (int i = 0; i < D / 32; ++i) {
                    part[i] = make_uint4(0, 0, 0, 0);  // what an unused slot holds may be no number
                    if (weight != 0) part[i] = ring.read(half, i);
                }
                add_partial<D>(o, half, part, weight);
            }
        }
        if (s + kStages < steps)
            ring.start(a, rows, s + kStages);
        else
            ring.start(a, next, s + kStages - steps);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) lse[half] += log2_approx(sum[half]);
}

}  // namespace perigee::block_sparse
