// Each thread handles two channels over a range of tokens and keeps their last W keys in registers. Memory is read
// once, except for the W - 1 tokens at either end of a range.
#include "kernels/key_conv/key_conv.h"

#include "kernels/common/column_sum.h"
#include "kernels/common/follow.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/vector.cuh"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 128;
constexpr int kStretch = 64;  // tokens per thread

/// Two channels of one token.
struct Pair {
    float a = 0, b = 0;
};

__device__ __forceinline__ Pair load(bf16 const* x, int64_t at) {
    uint32_t const both = *reinterpret_cast<uint32_t const*>(x + at);
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
}
__device__ __forceinline__ void store(bf16* y, int64_t at, Pair x) {
    *reinterpret_cast<__nv_bfloat162*>(y + at) = __floats2bfloat162_rn(x.a, x.b);
}
__device__ __forceinline__ float sigmoid(float s) { return 1 / (1 + __expf(-s)); }
/// The derivative of s sigmoid(s).
__device__ __forceinline__ float silu_slope(float s) {
    float const p = sigmoid(s);
    return p * (1 + s * (1 - p));
}

/// Thread blocks for all channels of a range of tokens. The grid has one dimension, as only that may be long.
__host__ __device__ constexpr int blocks_across(KeyConvShape const& shape) {
    return (shape.channels + 2 * kThreads - 1) / (2 * kThreads);
}

/// Work of a thread: channels `channel` and `channel` + 1, tokens [begin, end) of range `range`.
struct Place {
    int64_t range;
    int channel;
    int64_t begin, end;

    __device__ explicit Place(KeyConvShape const& shape)
        : range(blockIdx.x / blocks_across(shape)),
          channel(static_cast<int>(blockIdx.x % blocks_across(shape) * kThreads + threadIdx.x) * 2),
          begin(range * kStretch),
          end(min(begin + kStretch, shape.tokens)) {}
    __device__ bool outside(KeyConvShape const& shape) const { return channel >= shape.channels; }
};

template <int W>
struct Weights {
    Pair w[W];
    __device__ Weights(bf16 const* all, int channel) {
#pragma unroll
        for (int l = 0; l < W; ++l) w[l] = {widen(all[channel * W + l]), widen(all[(channel + 1) * W + l])};
    }
};

/// The last W keys, newest first.
template <int W>
struct Window {
    Pair x[W];
    __device__ void push(Pair key) {
#pragma unroll
        for (int l = W - 1; l > 0; --l) x[l] = x[l - 1];
        x[0] = key;
    }
    __device__ Pair sum(Weights<W> const& weights, int position) const {
        Pair s;
#pragma unroll
        for (int l = 0; l < W; ++l)
            if (l <= position) s.a += weights.w[l].a * x[l].a, s.b += weights.w[l].b * x[l].b;
        return s;
    }
};

template <int W>
__global__ void __launch_bounds__(kThreads) forward(KeyConvForward const a) {
    Place const place(a.shape);
    wait_for_previous();
    let_next_begin();
    if (place.outside(a.shape)) return;
    Weights<W> const weights(a.w, place.channel);
    Window<W> window;
    for (int64_t t = max(place.begin - (W - 1), int64_t{0}); t < place.end; ++t) {
        Pair const key = load(a.x, t * a.shape.channels + place.channel);
        window.push(key);
        if (t < place.begin) continue;
        Pair const s = window.sum(weights, a.positions[t]);
        store(a.y, t * a.shape.width + a.shape.first + place.channel,
              {key.a + s.a * sigmoid(s.a), key.b + s.b * sigmoid(s.b)});
    }
}

/// With ds = dy silu'(s): dx[t] = dy[t] + sum of w[l] ds[t + l], dw[l] = sum of ds[t] x[t - l]. dx[t] accumulates in
/// `pending` until token t + W - 1 has been read.
template <int W>
__global__ void __launch_bounds__(kThreads) backward(KeyConvBackward const a) {
    Place const place(a.shape);
    wait_for_previous();
    let_next_begin();
    if (place.outside(a.shape)) return;
    KeyConvShape const& shape = a.shape;
    Weights<W> const weights(a.w, place.channel);
    Window<W> window, pending;
    Pair dw[W];
    int64_t const first = max(place.begin - (W - 1), int64_t{0});
    int64_t const last = place.end + W - 1;  // nothing is added beyond the last token
    for (int64_t t = first; t < last; ++t) {
        bool const there = t < shape.tokens, ours = t >= place.begin && t < place.end;
        int64_t const at = t * shape.channels + place.channel;
        int const position = there ? a.positions[t] : -1;
        window.push(there ? load(a.x, at) : Pair{});
        Pair dy, ds;
        if (there && t >= place.begin) {
            dy = load(a.dy, at);
            Pair const s = window.sum(weights, position);
            ds = {dy.a * silu_slope(s.a), dy.b * silu_slope(s.b)};
        }
        pending.push(dy);
#pragma unroll
        for (int l = 0; l < W; ++l)
            if (l <= position) {
                pending.x[l].a += weights.w[l].a * ds.a, pending.x[l].b += weights.w[l].b * ds.b;
                if (ours) dw[l].a += ds.a * window.x[l].a, dw[l].b += ds.b * window.x[l].b;
            }
        int64_t const done = t - (W - 1);
        if (done >= place.begin) store(a.dx, done * shape.width + shape.first + place.channel, pending.x[W - 1]);
    }
    float* const to = a.scratch + (place.range * shape.channels + place.channel) * W;
#pragma unroll
    for (int l = 0; l < W; ++l) to[l] = dw[l].a, to[W + l] = dw[l].b;
}

int64_t stretches(KeyConvShape const& shape) { return ceil_div(shape.tokens, kStretch); }

dim3 grid(KeyConvShape const& shape) { return {static_cast<unsigned>(blocks_across(shape) * stretches(shape))}; }

/// Calls body.operator()<W>() with W = `taps`.
template <class Body>
void with_taps(int taps, Body body) {
    switch (taps) {
        case 1:
            return body.template operator()<1>();
        case 2:
            return body.template operator()<2>();
        case 3:
            return body.template operator()<3>();
        case 4:
            return body.template operator()<4>();
        default:
            return body.template operator()<5>();
    }
}

}  // namespace

void key_conv_forward(KeyConvForward const& args, cudaStream_t stream) {
    if (args.shape.tokens == 0) return;
    with_taps(args.shape.taps, [&]<int W>() {
        follow("key_conv_forward", forward<W>, grid(args.shape), dim3(kThreads), 0, stream, args);
    });
}

size_t key_conv_backward_scratch(KeyConvShape const& shape) {
    return static_cast<size_t>(stretches(shape) * shape.channels * shape.taps) * sizeof(float);
}

void key_conv_backward(KeyConvBackward const& args, cudaStream_t stream) {
    KeyConvShape const& shape = args.shape;
    if (shape.tokens == 0) return;
    with_taps(shape.taps,
              [&]<int W>() { follow("key_conv_backward", backward<W>, grid(shape), dim3(kThreads), 0, stream, args); });
    add_columns({{args.dw_accumulated, args.scratch, stretches(shape), int64_t{shape.channels} * shape.taps}}, stream);
}

}  // namespace perigee::kernels
