#include "ops/host/functions.h"
#include "ops/host/parallel.h"

namespace perigee::host {

template <class Real>
void embedding_forward(EmbeddingForward const& args) {
    int64_t const vocab = args.table_VD[0], width = args.x_TD[1];
    Real* const x = args.x_TD.as<Real>();
    int32_t const* const ids = args.ids_T.as<int32_t>();
    Real const* const table = args.table_VD.as<Real>();
    parallel_ranges(args.x_TD[0], row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            int64_t const row = ids[t] - args.vocab_begin;
            if (0 <= row && row < vocab)
                std::copy_n(table + row * width, width, x + t * width);
            else
                std::fill_n(x + t * width, width, Real(0));
        }
    });
}

// Each thread owns a range of columns and walks all tokens, so that rows with the same id never meet.
template <class Real>
void embedding_backward(EmbeddingBackward const& args) {
    constexpr int64_t kColumns = 64;
    int64_t const tokens = args.dx_TD[0], vocab = args.dtable_accumulated_VD[0], width = args.dx_TD[1];
    Real* const dtable = args.dtable_accumulated_VD.as<Real>();
    int32_t const* const ids = args.ids_T.as<int32_t>();
    Real const* const dx = args.dx_TD.as<Real>();
    parallel_ranges(width, kColumns, [&](int64_t begin, int64_t end) {
        for (int64_t t = 0; t < tokens; ++t) {
            int64_t const row = ids[t] - args.vocab_begin;
            if (row < 0 || row >= vocab) continue;
            Real* const to = dtable + row * width;
            Real const* const from = dx + t * width;
#pragma omp simd
            for (int64_t i = begin; i < end; ++i) to[i] += from[i];
        }
    });
}

template void embedding_forward<float>(EmbeddingForward const&);
template void embedding_forward<double>(EmbeddingForward const&);
template void embedding_backward<float>(EmbeddingBackward const&);
template void embedding_backward<double>(EmbeddingBackward const&);

}  // namespace perigee::host
