#include <cmath>

#include "ops/host/functions.h"
#include "ops/host/parallel.h"

namespace perigee::host {

namespace {

template <class Real>
Real const* optional(ConstView view) {
    return view.empty() ? nullptr : view.as<Real>();
}

template <class Real>
Real head_rstd(Real const* x, int64_t size, double eps) {
    Real squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; ++i) squares += x[i] * x[i];
    return Real(1) / std::sqrt(squares / Real(size) + Real(eps));
}

/// One token's row of the rope tables: K / 2 values each.
template <class Real>
struct Angles {
    Real const* cos;
    Real const* sin;
    int64_t half;
};

/// y = R(norm(x)) for one head.
template <class Real>
void rotate(Real* y, Real const* x, Real const* norm, Angles<Real> angles, double eps) {
    // Clang 16 crashes at structured bindings in a simd loop.
    Real const *const cos = angles.cos, *const sin = angles.sin;
    int64_t const half = angles.half;
    if (norm == nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
            y[i] = x[i] * cos[i] - x[i + half] * sin[i];
            y[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
        }
        return;
    }
    Real const r = head_rstd(x, 2 * half, eps);
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
        Real const low = x[i] * r * norm[i], high = x[i + half] * r * norm[i + half];
        y[i] = low * cos[i] - high * sin[i];
        y[i + half] = high * cos[i] + low * sin[i];
    }
}

/// dx = transpose of the rotation applied to dy.
template <class Real>
void rotate_back(Real* dx, Real const* dy, Angles<Real> angles) {
    Real const *const cos = angles.cos, *const sin = angles.sin;
    int64_t const half = angles.half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
        dx[i] = dy[i] * cos[i] + dy[i + half] * sin[i];
        dx[i + half] = dy[i + half] * cos[i] - dy[i] * sin[i];
    }
}

/// dx, the gradient of the norm's output, becomes that of its input x; `dnorm` collects the weight's.
template <class Real>
void head_norm_backward(Real* dx, Real* dnorm, Real const* x, Real const* norm, int64_t size, double eps) {
    Real const r = head_rstd(x, size, eps);
    Real dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < size; ++i) {
        Real const dy_x = dx[i] * x[i] * r;
        dnorm[i] += dy_x;
        dot += dy_x * norm[i];
    }
    Real const along_x = r * r * dot / Real(size);
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) dx[i] = dx[i] * norm[i] * r - x[i] * along_x;
}

}  // namespace

template <class Real>
void rope_table(RopeTable const& args) {
    int64_t const half = args.cos_TR[1];
    int32_t const* const positions = args.positions_T.as<int32_t>();
    Real* const cos = args.cos_TR.as<Real>();
    Real* const sin = args.sin_TR.as<Real>();
    parallel_ranges(args.positions_T[0], row_grain(16 * half), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t i = 0; i < half; ++i) {
                double const angle = positions[t] * args.inverse_frequencies[static_cast<size_t>(i)];
                cos[t * half + i] = static_cast<Real>(args.magnitude * std::cos(angle));
                sin[t * half + i] = static_cast<Real>(args.magnitude * std::sin(angle));
            }
        }
    });
}

template <class Real>
void qkv_forward(QkvForward const& args) {
    int64_t const heads = args.q_THK[1], kv_heads = args.k_TGK[1], size = args.q_THK[2], half = size / 2;
    int64_t const width = (heads + 2 * kv_heads) * size;
    Real const* const bias = optional<Real>(args.bias_X);
    Real const* const q_norm = optional<Real>(args.q_norm_K);
    Real const* const k_norm = optional<Real>(args.k_norm_K);
    Real const* const cos = args.cos_TR.as<Real>();
    Real const* const sin = args.sin_TR.as<Real>();
    Real* const q = args.q_THK.as<Real>();
    Real* const k = args.k_TGK.as<Real>();
    Real* const v = args.v_TGK.as<Real>();
    Real* const qkv = args.qkv_TX.as<Real>();
    auto const token = [&](int64_t t) {
        Real* const row = qkv + t * width;
        if (bias != nullptr) {
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) row[i] += bias[i];
        }
        Angles<Real> const angles{cos + t * half, sin + t * half, half};
        for (int64_t h = 0; h < heads; ++h)
            rotate(q + (t * heads + h) * size, row + h * size, q_norm, angles, args.eps);
        for (int64_t g = 0; g < kv_heads; ++g)
            rotate(k + (t * kv_heads + g) * size, row + (heads + g) * size, k_norm, angles, args.eps);
        std::copy_n(row + (heads + kv_heads) * size, kv_heads * size, v + t * kv_heads * size);
    };
    parallel_ranges(args.q_THK[0], row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) token(t);
    });
}

template <class Real>
void qkv_backward(QkvBackward const& args, std::vector<Real>& scratch) {
    int64_t const heads = args.dq_THK[1], kv_heads = args.dk_TGK[1], size = args.dq_THK[2], half = size / 2;
    int64_t const width = (heads + 2 * kv_heads) * size;
    Real const* const q_norm = optional<Real>(args.q_norm_K);
    Real const* const k_norm = optional<Real>(args.k_norm_K);
    Real const* const cos = args.cos_TR.as<Real>();
    Real const* const sin = args.sin_TR.as<Real>();
    Real const* const dq = args.dq_THK.as<Real>();
    Real const* const dk = args.dk_TGK.as<Real>();
    Real const* const dv = args.dv_TGK.as<Real>();
    Real const* const qkv = optional<Real>(args.qkv_TX);
    Real* const dqkv = args.dqkv_TX.as<Real>();
    bool const has_bias = !args.dbias_accumulated_X.empty();

    // Partial sums hold dq_norm, dk_norm and dbias side by side.
    auto const token = [&](int64_t t, Real* partial) {
        Real* const row = dqkv + t * width;
        Angles<Real> const angles{cos + t * half, sin + t * half, half};
        for (int64_t h = 0; h < heads; ++h) {
            Real* const dx = row + h * size;
            rotate_back(dx, dq + (t * heads + h) * size, angles);
            if (q_norm != nullptr) head_norm_backward(dx, partial, qkv + t * width + h * size, q_norm, size, args.eps);
        }
        for (int64_t g = 0; g < kv_heads; ++g) {
            Real* const dx = row + (heads + g) * size;
            rotate_back(dx, dk + (t * kv_heads + g) * size, angles);
            if (k_norm != nullptr)
                head_norm_backward(dx, partial + size, qkv + t * width + (heads + g) * size, k_norm, size, args.eps);
        }
        std::copy_n(dv + t * kv_heads * size, kv_heads * size, row + (heads + kv_heads) * size);
        if (has_bias) {
            Real* const dbias = partial + 2 * size;
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) dbias[i] += row[i];
        }
    };
    int64_t const sums = 2 * size + (has_bias ? width : 0);
    Real const* const total = sum_over_rows(args.dq_THK[0], sums, scratch, [&](int64_t begin, int64_t end, Real* sum) {
        for (int64_t t = begin; t < end; ++t) token(t, sum);
    });
    auto const collect = [](TensorView accumulated, Real const* sum) {
        Real* const to = accumulated.as<Real>();
        for (int64_t i = 0; i < accumulated.size(); ++i) to[i] += sum[i];
    };
    if (q_norm != nullptr) collect(args.dq_norm_accumulated_K, total);
    if (k_norm != nullptr) collect(args.dk_norm_accumulated_K, total + size);
    if (has_bias) collect(args.dbias_accumulated_X, total + 2 * size);
}

template void rope_table<float>(RopeTable const&);
template void rope_table<double>(RopeTable const&);
template void qkv_forward<float>(QkvForward const&);
template void qkv_forward<double>(QkvForward const&);
template void qkv_backward<float>(QkvBackward const&, std::vector<float>&);
template void qkv_backward<double>(QkvBackward const&, std::vector<double>&);

}  // namespace perigee::host
