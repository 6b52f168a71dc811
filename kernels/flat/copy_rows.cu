#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/flat/flat.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;

/// Strides and width count units. A block takes blockDim.y runs at a time.
template <class Unit>
__global__ void __launch_bounds__(kThreads) copy_units(CopyRows const a) {
    for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < a.rows;
         row += int64_t{gridDim.x} * blockDim.y) {
        Unit* const to = static_cast<Unit*>(a.to) + row * a.to_stride;
        Unit const* const from = static_cast<Unit const*>(a.from) + row * a.from_stride;
#pragma unroll 4
        for (int64_t i = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; i < a.width;
             i += int64_t{gridDim.y} * blockDim.x)
            to[i] = from[i];
    }
}

template <class Unit>
bool copied_by(CopyRows const& a, cudaStream_t stream) {
    constexpr int64_t kSize = sizeof(Unit);
    for (int64_t bytes :
         {reinterpret_cast<int64_t>(a.to), reinterpret_cast<int64_t>(a.from), a.to_stride, a.from_stride, a.width})
        if (bytes % kSize != 0) return false;
    CopyRows const units{a.to, a.to_stride / kSize, a.from, a.from_stride / kSize, a.rows, a.width / kSize};
    unsigned across = 1;
    while (across < kThreads && across < units.width) across *= 2;
    unsigned const runs = kThreads / across;
    dim3 const blocks(static_cast<unsigned>(std::min<int64_t>(ceil_div(a.rows, runs), 1 << 20)),
                      static_cast<unsigned>(std::min<int64_t>(ceil_div(units.width, 4 * kThreads), 65535)));
    copy_units<Unit><<<blocks, dim3(across, runs), 0, stream>>>(units);
    check_launch("copy_rows");
    return true;
}

}  // namespace

void copy_rows(CopyRows const& args, cudaStream_t stream) {
    if (args.rows == 0 || args.width == 0) return;
    copied_by<uint4>(args, stream) || copied_by<uint32_t>(args, stream) || copied_by<uint16_t>(args, stream) ||
        copied_by<uint8_t>(args, stream);
}

}  // namespace perigee::kernels
