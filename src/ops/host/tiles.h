// One tile of attention: some query rows against some keys, forward with a running softmax and backward from the final
// log-sum-exp. Full attention and MoBA differ only in which rows meet which keys. A tile is scratch memory of one
// thread, reused for all its work.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/host/blas.h"
#include "ops/host/fast_math.h"

namespace perigee::host {

// Measured with head size 64 on a core with 1 MiB of L2: any choice of 128 to 256 rows and 128 to 512 keys is within
// 8 % of the best; small tiles waste less on the diagonal and on blocks that few queries chose.
inline constexpr int64_t kTileRows = 128;  ///< queries of a tile
inline constexpr int64_t kTileKeys = 256;  ///< keys of a forward tile

/// `rows` queries against `keys` keys; row r sees the first `visible + r` keys of the tile, at most all and at least
/// none. Pass `visible = keys` where nothing is masked.
struct TileShape {
    int64_t rows = 0;
    int64_t keys = 0;
    int64_t visible = 0;

    int64_t seen(int64_t row) const { return std::clamp<int64_t>(visible + row, 0, keys); }
};

/// Softmax(scale q k^T) v for up to kTileRows rows, taking in up to kTileKeys keys at a time.
template <class Real>
class ForwardTile {
  public:
    explicit ForwardTile(int64_t head_dim)
        : dim_(head_dim), p_(kTileRows * kTileKeys), o_(kTileRows * head_dim), max_(kTileRows), sum_(kTileRows) {}

    void start() {
        std::fill(o_.begin(), o_.end(), Real{0});
        std::fill(max_.begin(), max_.end(), -std::numeric_limits<Real>::infinity());
        std::fill(sum_.begin(), sum_.end(), Real{0});
    }

    void absorb(TileShape shape, Real scale, Rows<Real const> q, Rows<Real const> k, Rows<Real const> v) {
        gemm<Real>({.c = {p_.data(), shape.keys},
                    .a = q,
                    .b = k,
                    .m = shape.rows,
                    .n = shape.keys,
                    .k = dim_,
                    .transpose_b = true,
                    .alpha = scale});
        for (int64_t r = 0; r < shape.rows; ++r) {
            Real* const p = p_.data() + r * shape.keys;
            int64_t const seen = shape.seen(r);
            Real top = max_[r];
#pragma omp simd reduction(max : top)
            for (int64_t c = 0; c < seen; ++c) top = p[c] > top ? p[c] : top;
            // A row that has seen only -inf keeps its empty sum instead of computing inf - inf.
            Real const shift = top == -std::numeric_limits<Real>::infinity() ? Real{0} : top;
            Real sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t c = 0; c < seen; ++c) {
                p[c] = exp_approx(p[c] - shift);
                sum += p[c];
            }
            std::fill(p + seen, p + shape.keys, Real{0});
            if (top > max_[r]) rescale(r, exp_approx(max_[r] - shift));
            max_[r] = top;
            sum_[r] += sum;
        }
        gemm<Real>({.c = {o_.data(), dim_},
                    .a = {p_.data(), shape.keys},
                    .b = v,
                    .m = shape.rows,
                    .n = dim_,
                    .k = shape.keys,
                    .beta = 1});
    }

    /// Writes the row's attention output and returns its log-sum-exp; 0 and -inf for a row of -inf scores.
    Real finish(int64_t row, Real* o) const {
        Real const inverse = sum_[row] == 0 ? Real{0} : 1 / sum_[row];
        Real const* const from = o_.data() + row * dim_;
        for (int64_t i = 0; i < dim_; ++i) o[i] = from[i] * inverse;
        return max_[row] + std::log(sum_[row]);
    }

  private:
    void rescale(int64_t row, Real factor) {
        sum_[row] *= factor;
        Real* const o = o_.data() + row * dim_;
        for (int64_t i = 0; i < dim_; ++i) o[i] *= factor;
    }

    int64_t dim_;
    std::vector<Real> p_;    ///< [rows, keys] scores, then their exponentials
    std::vector<Real> o_;    ///< [rows, K] not yet divided by the sum
    std::vector<Real> max_;  ///< largest score so far
    std::vector<Real> sum_;  ///< of exp(score - max)
};

/// What the backward of a tile reads and adds to. `dq_kept` is 1 to add to dq as well and 0 to overwrite it.
template <class Real>
struct TileGradients {
    Rows<Real const> q, k, v, d_o;
    Rows<Real const> lse, delta;  ///< one value per row: final log-sum-exp, and sum of d_o * o
    Rows<Real> dq, dk, dv;
    Real dq_kept = 0;
};

/// With P = exp(scale q k^T - lse) and dS = P * (d_o v^T - delta): dv = P^T d_o, dq = scale dS k, dk = scale dS^T q.
template <class Real>
class BackwardTile {
  public:
    explicit BackwardTile(int64_t head_dim) : dim_(head_dim), p_(kTileRows * kTileRows), ds_(kTileRows * kTileRows) {}

    void run(TileShape shape, Real scale, TileGradients<Real> const& x) {
        auto const [rows, keys, visible] = shape;
        Rows<Real> const p_RC{p_.data(), keys}, ds_RC{ds_.data(), keys};
        gemm<Real>(
            {.c = p_RC, .a = x.q, .b = x.k, .m = rows, .n = keys, .k = dim_, .transpose_b = true, .alpha = scale});
        gemm<Real>({.c = ds_RC, .a = x.d_o, .b = x.v, .m = rows, .n = keys, .k = dim_, .transpose_b = true});
        for (int64_t r = 0; r < rows; ++r) {
            Real* const p = p_.data() + r * keys;
            Real* const ds = ds_.data() + r * keys;
            Real const lse = *x.lse[r];
            // A row that sees nothing but scores of -inf has an empty sum, hence no gradients.
            int64_t const seen = lse == -std::numeric_limits<Real>::infinity() ? 0 : shape.seen(r);
            Real const delta = *x.delta[r];
#pragma omp simd
            for (int64_t c = 0; c < seen; ++c) {
                p[c] = exp_approx(p[c] - lse);
                ds[c] = p[c] * (ds[c] - delta);
            }
            std::fill(p + seen, p + keys, Real{0});
            std::fill(ds + seen, ds + keys, Real{0});
        }
        gemm<Real>({.c = x.dv, .a = p_RC, .b = x.d_o, .m = keys, .n = dim_, .k = rows, .transpose_a = true, .beta = 1});
        gemm<Real>(
            {.c = x.dq, .a = ds_RC, .b = x.k, .m = rows, .n = dim_, .k = keys, .alpha = scale, .beta = x.dq_kept});
        gemm<Real>({.c = x.dk,
                    .a = ds_RC,
                    .b = x.q,
                    .m = keys,
                    .n = dim_,
                    .k = rows,
                    .transpose_a = true,
                    .alpha = scale,
                    .beta = 1});
    }

  private:
    int64_t dim_;
    std::vector<Real> p_;   ///< [rows, keys]
    std::vector<Real> ds_;  ///< [rows, keys] d_o v^T, then dS
};

}  // namespace perigee::host
