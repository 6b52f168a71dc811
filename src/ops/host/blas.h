// The one door to OpenBLAS: row-major matrix products on host memory, with a clock of the time and the floating-point
// operations spent there.
#pragma once

#include <cstdint>

namespace perigee::host {

/// c[m,n] = alpha op(a) op(b) + beta c, row-major; op(a) is [m,k], op(b) is [k,n]; lda, ldb, ldc are row strides in
/// elements of a, b, c as stored. With beta 0, c may hold anything, NaN included. May be called from inside a parallel
/// region, where OpenBLAS (OpenMP build) runs each call on the calling thread. Real is float or double.
template <class Real>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, Real alpha, Real const* a, int64_t lda,
          Real const* b, int64_t ldb, Real beta, Real* c, int64_t ldc);

/// Sets the threads of OpenMP and OpenBLAS (0: every core this process may use) and warns, once, when the OpenBLAS
/// found at run time is not the OpenMP build.
void set_threads(int threads);

}  // namespace perigee::host
