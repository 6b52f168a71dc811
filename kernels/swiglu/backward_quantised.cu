#include "kernels/quantize/tile.cuh"
#include "kernels/swiglu/gradient.cuh"

namespace perigee::kernels {

namespace {

using namespace quantizing;

/// A gradient tile of gate or up in one thread block.
struct Tile {
    Octet octets[kRows];
    float scale[kRows];
    bool finite = true;

    __device__ void quantise(int r, float const (&x)[8]) {
        uint32_t amax = 0;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) amax = max(amax, magnitude(x[c]));
        amax = largest_of_half(amax);
        finite = finite && is_finite_amax(amax);
        octets[r] = quantized(x, amax);
        scale[r] = __uint_as_float(scale_bits(amax));
    }
    __device__ void store(Quantized const& to, int64_t rows, int64_t columns, int64_t row, int64_t column) const {
        Place const place;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            int64_t const t = row + place.row(r);
            store_octet(to.bytes + t * columns + column + place.column(), octets[r]);
            if (place.lane == 0) to.scales[column / kTile * rows + t] = scale[r];
        }
    }
};

/// Each thread block covers 128 tokens and 128 channels, for both gate and up.
__global__ void __launch_bounds__(kThreads, 2) quantised_backward(SwigluBackward const a) {
    __shared__ Shared shared;
    int64_t const across = a.width / kTile;
    int64_t const row = blockIdx.x / across * kTile, column = blockIdx.x % across * kTile;
    Place const place;
    Tile gates, ups;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        int64_t const t = row + place.row(r), i = column + place.column();
        float gate[8], up[8], dy[8];
        load(gate, a.gate_up + t * 2 * a.width + i);
        load(up, a.gate_up + t * 2 * a.width + a.width + i);
        load(dy, a.dy + t * a.width + i);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) to_gradient(gate[c], up[c], dy[c]);
        gates.quantise(r, gate);
        ups.quantise(r, up);
    }
    gates.store(a.quantised, a.tokens, 2 * a.width, row, column);
    ups.store(a.quantised, a.tokens, 2 * a.width, row, a.width + column);
    transpose_rows(a.transposed, a.tokens, 2 * a.width, row, column, gates.octets, gates.scale, gates.finite, shared);
    __syncthreads();
    transpose_rows(a.transposed, a.tokens, 2 * a.width, row, a.width + column, ups.octets, ups.scale, ups.finite,
                   shared);
}

}  // namespace

void swiglu_backward_quantised(SwigluBackward const& args, cudaStream_t stream) {
    auto const blocks = static_cast<unsigned>(args.tokens / kTile * (args.width / kTile));
    quantised_backward<<<blocks, kThreads, 0, stream>>>(args);
    check_launch("swiglu_backward");
}

}  // namespace perigee::kernels
