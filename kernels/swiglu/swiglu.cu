#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/common/vector.cuh"
#include "kernels/swiglu/gradient.cuh"
#include "kernels/swiglu/swiglu.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;

/// Where a thread works: `i` in row `t`, of rows cut into `pieces` blocks.
struct Place {
    int64_t t;
    int i;
    __device__ Place(unsigned pieces, int run)
        : t(blockIdx.x / pieces), i(static_cast<int>((blockIdx.x % pieces * blockDim.x + threadIdx.x)) * run) {}
};

template <int N>
__global__ void __launch_bounds__(kThreads) forward(SwigluForward const a, unsigned pieces) {
    Place const place(pieces, N);
    if (place.i >= a.width) return;
    bf16 const* const gate_row = a.gate_up + place.t * 2 * a.width + place.i;
    float gate[N], up[N];
    load(gate, gate_row);
    load(up, gate_row + a.width);
#pragma unroll
    for (int j = 0; j < N; ++j) up[j] *= gate[j] * sigmoid(gate[j]);
    store(a.y + place.t * a.width + place.i, up);
}

template <int N>
__global__ void __launch_bounds__(kThreads) backward(SwigluBackward const a, unsigned pieces) {
    Place const place(pieces, N);
    if (place.i >= a.width) return;
    int64_t const at = place.t * 2 * a.width + place.i;
    float gate[N], up[N], dy[N];
    load(gate, a.gate_up + at);
    load(up, a.gate_up + at + a.width);
    load(dy, a.dy + place.t * a.width + place.i);
#pragma unroll
    for (int j = 0; j < N; ++j) to_gradient(gate[j], up[j], dy[j]);
    store(a.dgate_up + at, gate);
    store(a.dgate_up + at + a.width, up);
}

struct Grid {
    unsigned blocks, threads, pieces;
};
Grid grid(int64_t tokens, int64_t width, int run) {
    int64_t const threads = std::min<int64_t>(kThreads, round_up(ceil_div(width, run), 32));
    int64_t const pieces = ceil_div(width, threads * run);
    return {static_cast<unsigned>(tokens * pieces), static_cast<unsigned>(threads), static_cast<unsigned>(pieces)};
}

}  // namespace

void swiglu_forward(SwigluForward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    bool const eights = in_runs_of_eight(args.width, {args.y, args.gate_up});
    Grid const g = grid(args.tokens, args.width, eights ? 8 : 1);
    if (eights)
        forward<8><<<g.blocks, g.threads, 0, stream>>>(args, g.pieces);
    else
        forward<1><<<g.blocks, g.threads, 0, stream>>>(args, g.pieces);
    check_launch("swiglu_forward");
}

void swiglu_backward(SwigluBackward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    if (args.quantised.bytes != nullptr) return swiglu_backward_quantised(args, stream);
    bool const eights = in_runs_of_eight(args.width, {args.dgate_up, args.dy, args.gate_up});
    Grid const g = grid(args.tokens, args.width, eights ? 8 : 1);
    if (eights)
        backward<8><<<g.blocks, g.threads, 0, stream>>>(args, g.pieces);
    else
        backward<1><<<g.blocks, g.threads, 0, stream>>>(args, g.pieces);
    check_launch("swiglu_backward");
}

}  // namespace perigee::kernels
