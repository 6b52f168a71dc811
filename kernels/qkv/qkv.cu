#include <algorithm>

#include "kernels/common/column_sum.h"
#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/qkv/qkv.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;

// A group of `lanes` neighbouring lanes works on one head of a row, a thread on the same columns of one token after the
// other: V runs of N values of the lower half of the head and the matching ones of the upper half.
template <int N, int V>
struct Half {
    float values[V][N];
};

struct Place {
    QkvShape const& shape;
    int lanes;
    int head, lane;

    __device__ Place(QkvShape const& s, int lanes_of_head)
        : shape(s),
          lanes(lanes_of_head),
          head(static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / lanes),
          lane(static_cast<int>(threadIdx.x) % lanes) {}

    __device__ int half() const { return shape.size / 2; }
    __device__ bool is_q() const { return head < shape.heads; }
    __device__ bool is_v() const { return head >= shape.heads + shape.kv_heads; }
    __device__ int width() const { return (shape.heads + 2 * shape.kv_heads) * shape.size; }
    /// First column of the head in a row of the projection.
    __device__ int column() const { return head * shape.size; }
    __device__ bool exists() const { return head < shape.heads + 2 * shape.kv_heads; }
    /// Start of the head in q, k or v.
    template <class T>
    __device__ T* split(T* q, T* k, T* v, int64_t t) const {
        if (is_q()) return q + (t * shape.heads + head) * shape.size;
        if (is_v()) return v + (t * shape.kv_heads + head - shape.heads - shape.kv_heads) * shape.size;
        return k + (t * shape.kv_heads + head - shape.heads) * shape.size;
    }
    /// Calls f(v, i) for each run of this thread; i is its place in the lower half.
    template <int N, int V, class F>
    __device__ __forceinline__ void runs(F const& f) const {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            int const i = (v * lanes + lane) * N;
            if (i < half() && exists()) f(v, i);
        }
    }
};

template <int N, int V, class T>
__device__ __forceinline__ void load_head(Half<N, V>& low, Half<N, V>& high, T const* from, Place const& place) {
    place.runs<N, V>([&](int v, int i) {
        load(low.values[v], from + i);
        load(high.values[v], from + place.half() + i);
    });
}
template <int N, int V>
__device__ __forceinline__ void store_head(bf16* to, Half<N, V> const& low, Half<N, V> const& high,
                                           Place const& place) {
    place.runs<N, V>([&](int v, int i) {
        store(to + i, low.values[v]);
        store(to + place.half() + i, high.values[v]);
    });
}

/// The sum over a head of a * b, where absent lanes hold zeros.
template <int N, int V>
__device__ __forceinline__ float head_dot(Half<N, V> const& a_low, Half<N, V> const& a_high, Half<N, V> const& b_low,
                                          Half<N, V> const& b_high, int lanes) {
    float sum = 0;
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
        for (int j = 0; j < N; ++j)
            sum += a_low.values[v][j] * b_low.values[v][j] + a_high.values[v][j] * b_high.values[v][j];
    return group_sum(sum, lanes);
}

/// (low, high) <- rotation by the angle, or by its negative where `direction` is -1.
template <int N, int V>
__device__ __forceinline__ void rotate(Half<N, V>& low, Half<N, V>& high, float const* cos, float const* sin,
                                       float direction, Place const& place) {
    place.runs<N, V>([&](int v, int i) {
        float c[N], s[N];
        load(c, cos + i);
        load(s, sin + i);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            float const l = low.values[v][j], h = high.values[v][j], turned = direction * s[j];
            low.values[v][j] = l * c[j] - h * turned;
            high.values[v][j] = h * c[j] + l * turned;
        }
    });
}

template <int N, int V, bool kBias, bool kNorm>
__global__ void __launch_bounds__(kThreads) forward(QkvForward const a, int lanes) {
    Place const place(a.shape, lanes);
    bf16 const* const norm = place.is_v() ? nullptr : place.is_q() ? a.q_norm : a.k_norm;
    Half<N, V> bias_low, bias_high, norm_low = {}, norm_high = {};
    if (kBias) load_head(bias_low, bias_high, a.bias + place.column(), place);
    if (kNorm && norm != nullptr) load_head(norm_low, norm_high, norm, place);
    for (int64_t t = blockIdx.y; t < a.shape.tokens; t += gridDim.y) {
        Half<N, V> low = {}, high = {};
        bf16* const from = a.qkv + t * place.width() + place.column();
        load_head(low, high, from, place);
        if (kBias) {
            place.runs<N, V>([&](int v, int) {
#pragma unroll
                for (int j = 0; j < N; ++j) {  // rounded, as the backward will find it
                    low.values[v][j] = widen(narrow<bf16>(low.values[v][j] + bias_low.values[v][j]));
                    high.values[v][j] = widen(narrow<bf16>(high.values[v][j] + bias_high.values[v][j]));
                }
            });
            store_head(from, low, high, place);
        }
        if (kNorm) {
            float const squares = head_dot(low, high, low, high, lanes);
            float const rstd = 1 / sqrtf(squares / static_cast<float>(a.shape.size) + a.eps);
            if (norm != nullptr) {
#pragma unroll
                for (int v = 0; v < V; ++v)
#pragma unroll
                    for (int j = 0; j < N; ++j) {
                        low.values[v][j] *= rstd * norm_low.values[v][j];
                        high.values[v][j] *= rstd * norm_high.values[v][j];
                    }
            }
        }
        if (!place.is_v()) rotate(low, high, a.cos + t * place.half(), a.sin + t * place.half(), 1, place);
        store_head(place.split(a.q, a.k, a.v, t), low, high, place);
    }
}

/// Partial sums of one group of tokens: dbias [groups, X], dq_norm [groups, H, K], dk_norm [groups, G, K], one after
/// the other.
struct Partials {
    float *bias, *q_norm, *k_norm;
    int64_t groups;
};

template <int N, int V, bool kBias, bool kNorm>
__global__ void __launch_bounds__(kThreads) backward(QkvBackward const a, Partials const partials, int lanes) {
    Place const place(a.shape, lanes);
    bf16 const* const norm = place.is_v() ? nullptr : place.is_q() ? a.q_norm : a.k_norm;
    Half<N, V> norm_low = {}, norm_high = {};
    Half<N, V> dbias_low = {}, dbias_high = {}, dnorm_low = {}, dnorm_high = {};
    if (kNorm && norm != nullptr) load_head(norm_low, norm_high, norm, place);
    for (int64_t t = blockIdx.y; t < a.shape.tokens; t += gridDim.y) {
        Half<N, V> low = {}, high = {}, x_low = {}, x_high = {};
        load_head(low, high, place.split(a.dq, a.dk, a.dv, t), place);
        if (kNorm && norm != nullptr) load_head(x_low, x_high, a.qkv + t * place.width() + place.column(), place);
        if (!place.is_v()) rotate(low, high, a.cos + t * place.half(), a.sin + t * place.half(), -1, place);
        if (kNorm) {
            auto const size = static_cast<float>(a.shape.size);
            float const rstd = 1 / sqrtf(head_dot(x_low, x_high, x_low, x_high, lanes) / size + a.eps);
            Half<N, V> weighted_low, weighted_high;
#pragma unroll
            for (int v = 0; v < V; ++v)
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    weighted_low.values[v][j] = low.values[v][j] * norm_low.values[v][j];
                    weighted_high.values[v][j] = high.values[v][j] * norm_high.values[v][j];
                    dnorm_low.values[v][j] += low.values[v][j] * x_low.values[v][j] * rstd;
                    dnorm_high.values[v][j] += high.values[v][j] * x_high.values[v][j] * rstd;
                }
            float const dot = rstd * head_dot(weighted_low, weighted_high, x_low, x_high, lanes);
            float const along_x = rstd * rstd * dot / size;
            if (norm != nullptr) {
#pragma unroll
                for (int v = 0; v < V; ++v)
#pragma unroll
                    for (int j = 0; j < N; ++j) {
                        low.values[v][j] = weighted_low.values[v][j] * rstd - x_low.values[v][j] * along_x;
                        high.values[v][j] = weighted_high.values[v][j] * rstd - x_high.values[v][j] * along_x;
                    }
            }
        }
        if (kBias) {
#pragma unroll
            for (int v = 0; v < V; ++v)
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    dbias_low.values[v][j] += low.values[v][j];
                    dbias_high.values[v][j] += high.values[v][j];
                }
        }
        store_head(a.dqkv + t * place.width() + place.column(), low, high, place);
    }
    auto const leave = [&](float* to, Half<N, V> const& low, Half<N, V> const& high) {
        place.runs<N, V>([&](int v, int i) {
            store(to + i, low.values[v]);
            store(to + place.half() + i, high.values[v]);
        });
    };
    if (kBias) leave(partials.bias + blockIdx.y * place.width() + place.column(), dbias_low, dbias_high);
    if (kNorm && norm != nullptr)
        leave(place.split<float>(partials.q_norm, partials.k_norm, nullptr, blockIdx.y), dnorm_low, dnorm_high);
}

int64_t width_of(QkvShape const& shape) { return int64_t{shape.heads + 2 * shape.kv_heads} * shape.size; }

struct Plan {
    bool eights;
    int lanes;
    dim3 grid;
};

/// `waves`: blocks per multiprocessor over the whole launch.
Plan plan(QkvShape const& shape, bool aligned, int64_t waves) {
    bool const eights = aligned && shape.size % 16 == 0;
    int const runs = static_cast<int>(ceil_div(shape.size / 2, eights ? 8 : 1));
    int lanes = 1;
    while (lanes < runs && lanes < 32) lanes *= 2;
    int64_t const across = ceil_div(int64_t{shape.heads + 2 * shape.kv_heads} * lanes, kThreads);
    int64_t const groups =
        std::clamp<int64_t>(multiprocessors() * waves / across, 1, std::min<int64_t>(shape.tokens, 65535));
    return {eights, lanes, dim3(static_cast<unsigned>(across), static_cast<unsigned>(groups))};
}

constexpr int64_t kStreamingWaves = 32;
constexpr int64_t kSummingWaves = 4;  // each group of tokens leaves partial sums, so few groups

int64_t most_groups(QkvShape const& shape) {
    return std::max(plan(shape, false, kSummingWaves).grid.y, plan(shape, true, kSummingWaves).grid.y);
}

/// Calls `launch.operator()<N, V, kBias, kNorm>()`.
template <class Launch>
void with_options(bool eights, bool bias, bool norm, Launch const& launch) {
    auto const widths = [&]<bool kBias, bool kNorm>() {
        if (eights)
            launch.template operator()<8, 1, kBias, kNorm>();
        else
            launch.template operator()<1, 4, kBias, kNorm>();
    };
    if (bias && norm)
        widths.template operator()<true, true>();
    else if (bias)
        widths.template operator()<true, false>();
    else if (norm)
        widths.template operator()<false, true>();
    else
        widths.template operator()<false, false>();
}

}  // namespace

void qkv_forward(QkvForward const& args, cudaStream_t stream) {
    if (args.shape.tokens == 0) return;
    bool const aligned = in_runs_of_eight(
        0, {args.q, args.k, args.v, args.qkv, args.cos, args.sin, args.bias, args.q_norm, args.k_norm});
    Plan const p = plan(args.shape, aligned, kStreamingWaves);
    bool const norm = args.q_norm != nullptr || args.k_norm != nullptr;
    with_options(p.eights, args.bias != nullptr, norm, [&]<int N, int V, bool kBias, bool kNorm>() {
        forward<N, V, kBias, kNorm><<<p.grid, kThreads, 0, stream>>>(args, p.lanes);
    });
    check_launch("qkv_forward");
}

size_t qkv_backward_scratch(QkvShape const& shape, bool bias, bool norms) {
    int64_t const sums =
        (bias ? width_of(shape) : 0) + (norms ? int64_t{shape.heads + shape.kv_heads} * shape.size : 0);
    return static_cast<size_t>(shape.tokens == 0 ? 0 : most_groups(shape) * sums) * sizeof(float);
}

void qkv_backward(QkvBackward const& args, cudaStream_t stream) {
    QkvShape const& shape = args.shape;
    if (shape.tokens == 0) return;
    bool const bias = args.dbias_accumulated != nullptr, norm = args.q_norm != nullptr || args.k_norm != nullptr;
    bool const aligned = in_runs_of_eight(0, {args.dqkv, args.dq, args.dk, args.dv, args.qkv, args.cos, args.sin,
                                              args.q_norm, args.k_norm, args.scratch});
    Plan const p = plan(shape, aligned, bias || norm ? kSummingWaves : kStreamingWaves);
    int64_t const groups = p.grid.y;
    float* const q_sums = args.scratch + (bias ? groups * width_of(shape) : 0);
    float* const k_sums = q_sums + groups * shape.heads * shape.size;
    Partials const partials{args.scratch, q_sums, k_sums, groups};
    with_options(p.eights, bias, norm, [&]<int N, int V, bool kBias, bool kNorm>() {
        backward<N, V, kBias, kNorm><<<p.grid, kThreads, 0, stream>>>(args, partials, p.lanes);
    });
    check_launch("qkv_backward");
    if (bias) column_sum(args.dbias_accumulated, args.scratch, groups, width_of(shape), stream);
    if (args.q_norm != nullptr) column_sum(args.dq_norm_accumulated, q_sums, groups * shape.heads, shape.size, stream);
    if (args.k_norm != nullptr)
        column_sum(args.dk_norm_accumulated, k_sums, groups * shape.kv_heads, shape.size, stream);
}

}  // namespace perigee::kernels
