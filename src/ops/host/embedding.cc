#include "ops/host/functions.h"
#include "ops/host/parallel.h"

namespace perigee::host {

template <class Real>
void embedding_forward(TensorView x_TD, ConstView ids_T, ConstView table_VD, int64_t vocab_begin) {
    int64_t const vocab = table_VD[0], width = x_TD[1];
    Real* const x = x_TD.as<Real>();
    int32_t const* const ids = ids_T.as<int32_t>();
    Real const* const table = table_VD.as<Real>();
    parallel_ranges(x_TD[0], row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            int64_t const row = ids[t] - vocab_begin;
            if (0 <= row && row < vocab)
                std::copy_n(table + row * width, width, x + t * width);
            else
                std::fill_n(x + t * width, width, Real(0));
        }
    });
}

// Each thread owns a range of columns and walks all tokens, so that rows with the same id never meet.
template <class Real>
void embedding_backward(TensorView dtable_accumulated_VD, ConstView ids_T, ConstView dx_TD, int64_t vocab_begin) {
    constexpr int64_t kColumns = 64;
    int64_t const tokens = dx_TD[0], vocab = dtable_accumulated_VD[0], width = dx_TD[1];
    Real* const dtable = dtable_accumulated_VD.as<Real>();
    int32_t const* const ids = ids_T.as<int32_t>();
    Real const* const dx = dx_TD.as<Real>();
    parallel_ranges(width, kColumns, [&](int64_t begin, int64_t end) {
        for (int64_t t = 0; t < tokens; ++t) {
            int64_t const row = ids[t] - vocab_begin;
            if (row < 0 || row >= vocab) continue;
            Real* const to = dtable + row * width;
            Real const* const from = dx + t * width;
#pragma omp simd
            for (int64_t i = begin; i < end; ++i) to[i] += from[i];
        }
    });
}

template void embedding_forward<float>(TensorView, ConstView, ConstView, int64_t);
template void embedding_forward<double>(TensorView, ConstView, ConstView, int64_t);
template void embedding_backward<float>(TensorView, ConstView, ConstView, int64_t);
template void embedding_backward<double>(TensorView, ConstView, ConstView, int64_t);

}  // namespace perigee::host
