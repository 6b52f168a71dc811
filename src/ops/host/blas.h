// The one door to OpenBLAS: row-major matrix products on host memory, with a clock of the time and the floating-point
// operations spent there.
#pragma once

#include <cstdint>
#include <type_traits>

namespace perigee::host {

/// Rows `stride` elements apart: token t of head h of a tensor [T, H, K] is row t of {data + h K, H K}.
template <class Real>
struct Rows {
    Real* data = nullptr;
    int64_t stride = 0;

    Real* operator[](int64_t row) const { return data + row * stride; }
    Rows from(int64_t row) const { return {data + row * stride, stride}; }
    operator Rows<Real const>() const requires(!std::is_const_v<Real>) { return {data, stride}; }
};

/// c[m,n] = alpha op(a) op(b) + beta c; op transposes where asked. op(a) is [m,k], op(b) is [k,n]; the strides are
/// those of a and b as stored. With beta 0, c may hold anything, NaN included.
template <class Real>
struct Gemm {
    Rows<Real> c;
    Rows<Real const> a;
    Rows<Real const> b;
    int64_t m;
    int64_t n;
    int64_t k;
    bool transpose_a = false;
    bool transpose_b = false;
    Real alpha = 1;
    Real beta = 0;
};
/// May be called from inside a parallel region, where OpenBLAS (OpenMP build) runs each call on the calling thread.
/// Real is float or double.
template <class Real>
void gemm(Gemm<Real> const& args);

/// Sets the threads of OpenMP and OpenBLAS (0: every core this process may use) and warns, once, when the OpenBLAS
/// found at run time is not the OpenMP build. Throws OutOfMemory where OpenBLAS cannot get its buffers.
void set_threads(int threads);

}  // namespace perigee::host
