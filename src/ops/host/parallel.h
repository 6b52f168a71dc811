// Loops over rows on all cores, and sums over rows whose result does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace perigee::host {

/// body(begin, end) on ranges of [0, count), each at least `grain` long except the last.
template <class Body>
void parallel_ranges(int64_t count, int64_t grain, Body body) {
    int64_t const ranges = (count + grain - 1) / grain;
#pragma omp parallel for schedule(static) if (ranges > 1)
    for (int64_t i = 0; i < ranges; ++i) body(i * grain, std::min(count, (i + 1) * grain));
}

/// Rows per range when a row is `width` elements: about 16 thousand elements, enough to pay for handing it out.
inline int64_t row_grain(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(width, 1)); }

/// The sum over all rows of what body(begin, end, partial) adds to `partial` (`width` zeros at first). Rows are cut
/// into chunks that depend on `rows` alone and the chunks' partial sums are added in order. The result stays in
/// `scratch`, which grows to its largest use and is then reused.
template <class Real, class Body>
Real const* sum_over_rows(int64_t rows, int64_t width, std::vector<Real>& scratch, Body body) {
    constexpr int64_t kMaxChunks = 64, kMinRows = 16;
    int64_t const chunk = std::max(kMinRows, (rows + kMaxChunks - 1) / kMaxChunks);
    int64_t const chunks = std::max<int64_t>(1, (rows + chunk - 1) / chunk);
    if (scratch.size() < static_cast<size_t>(chunks * width)) scratch.resize(static_cast<size_t>(chunks * width));
    Real* const partials = scratch.data();
#pragma omp parallel for schedule(static) if (chunks > 1)
    for (int64_t i = 0; i < chunks; ++i) {
        std::fill_n(partials + i * width, width, Real(0));
        body(i * chunk, std::min(rows, (i + 1) * chunk), partials + i * width);
    }
    for (int64_t i = 1; i < chunks; ++i) {
        Real const* const partial = partials + i * width;
#pragma omp simd
        for (int64_t j = 0; j < width; ++j) partials[j] += partial[j];
    }
    return partials;
}

}  // namespace perigee::host
