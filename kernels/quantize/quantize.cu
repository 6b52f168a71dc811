#include "kernels/quantize/quantize.h"

#include "kernels/quantize/tile.cuh"

namespace perigee::kernels {

namespace quantizing {
namespace {

/// First element of a tile.
struct Corner {
    int64_t row, column;
    __device__ explicit Corner(int64_t columns) {
        int64_t const across = columns / kTile;
        row = blockIdx.x / across * kTile;
        column = blockIdx.x % across * kTile;
    }
};

/// One scale per 128 elements of a row.
template <bool transposes>
__global__ void __launch_bounds__(kThreads) quantize_rows(Quantize const a) {
    Corner const corner(a.columns);
    Place const place;
    Octet octets[kRows];
    float scale[kRows];
    bool finite = true;
    Run<bf16, 8> runs[kRows];
    bf16 const* const from = a.x + corner.row * a.columns + corner.column + place.column();
#pragma unroll
    for (int r = 0; r < kRows; ++r)
        runs[r] = transposes || corner.row + place.row(r) < a.rows ? load_run<8>(from + place.row(r) * a.columns)
                                                                   : Run<bf16, 8>{};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        uint32_t const amax = largest_of_half(magnitude(runs[r]));
        float x[8];
        unpack(x, runs[r]);
        finite = finite && is_finite_amax(amax);
        octets[r] = quantized(x, amax);
        scale[r] = __uint_as_float(scale_bits(amax));
        int64_t const row = corner.row + place.row(r);
        if (a.to.bytes == nullptr || (!transposes && row >= a.rows)) continue;
        store_octet(a.to.bytes + row * a.columns + corner.column + place.column(), octets[r]);
        if (place.lane == 0) a.to.scales[corner.column / kTile * a.rows + row] = scale[r];
    }
    if constexpr (transposes) {
        __shared__ Shared shared;
        transpose_rows(a.transposed, a.rows, a.columns, corner.row, corner.column, octets, scale, finite, shared);
    }
}

/// Pads rows of square-tile scales with zeros.
__device__ __forceinline__ void store_square_scale(float* to, int64_t across, int64_t down, int64_t width,
                                                   uint32_t amax) {
    int64_t const pitch = (width / kTile + 3) / 4 * 4;
    to[down * pitch + across] = __uint_as_float(scale_bits(amax));
    if (across == width / kTile - 1)
        for (int64_t i = across + 1; i < pitch; ++i) to[down * pitch + i] = 0;
}

/// One scale per 128 x 128 tile.
__global__ void __launch_bounds__(kThreads) quantize_squares(Quantize const a) {
    __shared__ Shared shared;
    Corner const corner(a.columns);
    Place const place;
    Run<bf16, 8> runs[kRows];
    bf16 const* const from = a.x + corner.row * a.columns + corner.column + place.column();
#pragma unroll
    for (int r = 0; r < kRows; ++r) runs[r] = load_run<8>(from + place.row(r) * a.columns);
    uint32_t amax = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) amax = max(amax, magnitude(runs[r]));
    amax = __reduce_max_sync(0xffffffffu, amax);
    if (threadIdx.x % 32 == 0) shared.tile_amax[threadIdx.x / 32] = amax;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) amax = max(amax, shared.tile_amax[w]);
    Octet octets[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        float x[8];
        unpack(x, runs[r]);
        octets[r] = quantized(x, amax);
        if (a.to.bytes != nullptr)
            store_octet(a.to.bytes + (corner.row + place.row(r)) * a.columns + corner.column + place.column(),
                        octets[r]);
    }
    int64_t const down = corner.row / kTile, across = corner.column / kTile;
    if (a.to.bytes != nullptr && threadIdx.x == 0) store_square_scale(a.to.scales, across, down, a.columns, amax);
    if (a.transposed.bytes == nullptr) return;
    if (threadIdx.x == 0) store_square_scale(a.transposed.scales, down, across, a.rows, amax);
    put_transpose(shared, place, octets);
    __syncthreads();
    write_transpose(a.transposed.bytes, a.rows, corner.row, corner.column, shared);
}

}  // namespace
}  // namespace quantizing

void quantize(Quantize const& args, cudaStream_t stream) {
    using namespace quantizing;
    auto const blocks = static_cast<unsigned>(ceil_div(args.rows, kTile) * (args.columns / kTile));
    if (blocks == 0) return;
    if (args.squares)
        quantize_squares<<<blocks, kThreads, 0, stream>>>(args);
    else if (args.transposed.bytes != nullptr)
        quantize_rows<true><<<blocks, kThreads, 0, stream>>>(args);
    else
        quantize_rows<false><<<blocks, kThreads, 0, stream>>>(args);
    check_launch("quantize");
}

}  // namespace perigee::kernels
