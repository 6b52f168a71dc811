// Online softmax of scores [rows, kKeys] in registers (FlashAttention, arXiv 2307.08691). s[4 n + 2 half + i] is the
// score of the lane's row lane / 4 (half 0) or the one 8 below, and of key 8 n + lane % 4 * 2 + i: results of mma.sync
// and wgmma alike. A quad of lanes shares two rows.
#pragma once

#include "kernels/common/fragments.cuh"

namespace perigee::kernels {

/// Factors that rescale the earlier results of the lane's two rows after another tile of keys.
struct Rescale {
    float factor[2];
    bool needed;  ///< some row of the warp may need rescaling; else the factors are not set

    template <int kCount>
    __device__ void apply(float (&o)[kCount]) const {
        if (!needed) return;
#pragma unroll
        for (int i = 0; i < kCount; ++i) o[i] *= factor[i % 4 / 2];
    }
};

/// Online softmax of the lane's two rows, in base 2. `top` changes only when a row's maximum exceeds it by more
/// than kSlack in base 2, so a warp seldom rescales. Each row decides for itself, so no result depends on other rows.
template <int kKeys>
struct Softmax {
    static constexpr float kSlack = 8;
    float top[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};  ///< of this lane's columns

    /// Turns scores into weights relative to the maxima from here on. `first`: they are known to be the rows' first.
    __device__ void absorb(float (&s)[kKeys / 2], float scale_log2, Rescale& rescale, bool first = false) {
        rescale.needed = first || __any_sync(kAllLanes, may_have_grown(s, scale_log2));
        if (rescale.needed) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float most = top[half];
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n)
                    most = fmaxf(most, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
                most = quad_max(most);
                bool const grown = (most - top[half]) * scale_log2 > kSlack;
                if (!grown) most = top[half];
                rescale.factor[half] = exp2_approx((top[half] - finite_base(most)) * scale_log2);
                sum[half] *= rescale.factor[half];
                top[half] = most;
            }
        }
        float shift[2], added[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; ++half) shift[half] = finite_base(top[half]) * scale_log2;
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
            s[i] = exp2_approx(s[i] * scale_log2 - shift[i % 4 / 2]);
            added[i % 4 / 2] += s[i];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) sum[half] += added[half];
    }

  private:
    /// Whether a maximum has to be looked for. It compares bits: floats from zero on have the order of their bits, and
    /// the greatest of three integers takes one instruction, that of three floats two. Scores below zero count as zero.
    /// For a row whose maximum is far below zero the answer may be yes without need, with the same result. Rows with
    /// NaN become NaN with either answer.
    __device__ bool may_have_grown(float const (&s)[kKeys / 2], float scale_log2) const {
        int most[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < kKeys / 2; i += 2)
            most[i / 2 % 2] = __vimax3_s32(most[i / 2 % 2], __float_as_int(s[i]), __float_as_int(s[i + 1]));
        float const growth = fmaxf(__int_as_float(most[0]) - top[0], __int_as_float(most[1]) - top[1]);
        return !(growth * scale_log2 <= kSlack);  // a scale of zero makes it NaN
    }
};

/// Scores of keys that their row does not see become -infinity. `sees`: the last key of each row; `key`: the first of
/// the tile.
template <int kCount>
__device__ __forceinline__ void mask_scores(float (&s)[kCount], int32_t const (&sees)[2], int32_t key) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int32_t const limit = sees[half], first = key + static_cast<int32_t>(threadIdx.x % 4) * 2;
#pragma unroll
        for (int n = 0; n < kCount / 4; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (first + n * 8 + i > limit) s[n * 4 + half * 2 + i] = -INFINITY;
    }
}

/// The same for keys before `first` of each row.
template <int kCount>
__device__ __forceinline__ void mask_scores_before(float (&s)[kCount], int32_t const (&first)[2], int32_t key) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int32_t const limit = first[half], at = key + static_cast<int32_t>(threadIdx.x % 4) * 2;
#pragma unroll
        for (int n = 0; n < kCount / 4; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (at + n * 8 + i < limit) s[n * 4 + half * 2 + i] = -INFINITY;
    }
}

}  // namespace perigee::kernels
