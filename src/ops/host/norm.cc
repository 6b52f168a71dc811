#include <cmath>

#include "ops/host/functions.h"
#include "ops/host/parallel.h"

namespace perigee::host {

template <class Real>
void rmsnorm_forward(RmsNormForward const& args) {
    int64_t const width = args.x_TD[1];
    Real const* const x = args.x_TD.as<Real>();
    Real const* const w = args.w_D.as<Real>();
    Real const* const residual = args.residual_TD.empty() ? nullptr : args.residual_TD.as<Real>();
    Real* const sum = args.residual_TD.empty() ? nullptr : args.sum_TD.as<Real>();
    Real* const y = args.y_TD.as<Real>();
    Real* const rstd = args.rstd_T.as<Real>();
    auto const row = [&](int64_t t) {
        Real const* x_row = x + t * width;
        Real squares = 0;
        if (residual != nullptr) {
            Real const* const r = residual + t * width;
            Real* const s = sum + t * width;
#pragma omp simd reduction(+ : squares)
            for (int64_t i = 0; i < width; ++i) {
                Real const v = x_row[i] + r[i];
                s[i] = v;
                squares += v * v;
            }
            x_row = s;
        } else {
#pragma omp simd reduction(+ : squares)
            for (int64_t i = 0; i < width; ++i) squares += x_row[i] * x_row[i];
        }
        Real const r = Real(1) / std::sqrt(squares / Real(width) + Real(args.eps));
        rstd[t] = r;
        Real* const out = y + t * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) out[i] = x_row[i] * r * w[i];
    };
    parallel_ranges(args.x_TD[0], row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) row(t);
    });
}

template <class Real>
void rmsnorm_backward(RmsNormBackward const& args, std::vector<Real>& scratch) {
    int64_t const width = args.x_TD[1];
    Real const* const x = args.x_TD.as<Real>();
    Real const* const w = args.w_D.as<Real>();
    Real const* const dy = args.dy_TD.as<Real>();
    Real const* const rstd = args.rstd_T.as<Real>();
    Real const* const dresidual = args.dresidual_TD.empty() ? nullptr : args.dresidual_TD.as<Real>();
    Real* const dx = args.dx_TD.as<Real>();
    auto const row = [&](int64_t t, Real* dw) {
        Real const* const x_row = x + t * width;
        Real const* const dy_row = dy + t * width;
        Real* const dx_row = dx + t * width;
        Real const r = rstd[t];
        Real dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < width; ++i) {
            Real const dy_x = dy_row[i] * x_row[i] * r;
            dw[i] += dy_x;
            dot += dy_x * w[i];
        }
        Real const along_x = r * r * dot / Real(width);
        if (dresidual != nullptr) {
            Real const* const residual = dresidual + t * width;
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) dx_row[i] = residual[i] + (dy_row[i] * w[i] * r - x_row[i] * along_x);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) dx_row[i] = dy_row[i] * w[i] * r - x_row[i] * along_x;
        }
    };
    Real const* const dw = sum_over_rows(args.x_TD[0], width, scratch, [&](int64_t begin, int64_t end, Real* partial) {
        for (int64_t t = begin; t < end; ++t) row(t, partial);
    });
    Real* const accumulated = args.dw_accumulated_D.as<Real>();
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) accumulated[i] += dw[i];
}

template void rmsnorm_forward<float>(RmsNormForward const&);
template void rmsnorm_forward<double>(RmsNormForward const&);
template void rmsnorm_backward<float>(RmsNormBackward const&, std::vector<float>&);
template void rmsnorm_backward<double>(RmsNormBackward const&, std::vector<double>&);

}  // namespace perigee::host
