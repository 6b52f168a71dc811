#include "ops/host/fast_math.h"
#include "ops/host/functions.h"
#include "ops/host/parallel.h"

namespace perigee::host {

template <class Real>
void swiglu_forward(SwigluForward const& args) {
    int64_t const width = args.y_TF[1];
    Real* const y = args.y_TF.as<Real>();
    Real const* const gate_up = args.gate_up_T2F.as<Real>();
    parallel_ranges(args.y_TF[0], row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            Real const* const gate = gate_up + t * 2 * width;
            Real const* const up = gate + width;
            Real* const out = y + t * width;
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) out[i] = gate[i] / (Real(1) + exp_approx(-gate[i])) * up[i];
        }
    });
}

template <class Real>
void swiglu_backward(SwigluBackward const& args) {
    int64_t const width = args.dy_TF[1];
    Real* const dgate_up = args.dgate_up_T2F.as<Real>();
    Real const* const dy = args.dy_TF.as<Real>();
    Real const* const gate_up = args.gate_up_T2F.as<Real>();
    parallel_ranges(args.dy_TF[0], row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            Real const* const gate = gate_up + t * 2 * width;
            Real const* const up = gate + width;
            Real* const dgate = dgate_up + t * 2 * width;
            Real* const dup = dgate + width;
            Real const* const d = dy + t * width;
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) {
                Real const x = gate[i], u = up[i];
                Real const sigmoid = Real(1) / (Real(1) + exp_approx(-x));
                dgate[i] = d[i] * u * sigmoid * (Real(1) + x * (Real(1) - sigmoid));
                dup[i] = d[i] * x * sigmoid;
            }
        }
    });
}

template void swiglu_forward<float>(SwigluForward const&);
template void swiglu_forward<double>(SwigluForward const&);
template void swiglu_backward<float>(SwigluBackward const&);
template void swiglu_backward<double>(SwigluBackward const&);

}  // namespace perigee::host
