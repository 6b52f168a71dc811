// One function over a flat range of elements, eight or one at a time: `f.template run<N>(i)` handles the elements
// [i, i + N). A function that reads and writes the same memory does so run by run, so in-place use is fine.
#pragma once

#include "kernels/common/launch.h"

namespace perigee::kernels {

constexpr int kFlatThreads = 256;

template <int N, class F>
__global__ void __launch_bounds__(kFlatThreads) for_each_kernel(F const f, int64_t count) {
    int64_t i = (int64_t{blockIdx.x} * kFlatThreads + threadIdx.x) * N;
    if (i + N <= count)
        f.template run<N>(i);
    else
        for (; i < count; ++i) f.template run<1>(i);
}

/// `eights`: whether element 0 of everything that f touches lies at a multiple of 16 bytes.
template <class F>
void for_each(F const& f, int64_t count, bool eights, char const* name, cudaStream_t stream) {
    if (count == 0) return;
    auto const blocks = static_cast<unsigned>(ceil_div(count, kFlatThreads * (eights ? 8 : 1)));
    if (eights)
        for_each_kernel<8><<<blocks, kFlatThreads, 0, stream>>>(f, count);
    else
        for_each_kernel<1><<<blocks, kFlatThreads, 0, stream>>>(f, count);
    check_launch(name);
}

}  // namespace perigee::kernels
