#include <algorithm>
#include <type_traits>

#include "kernels/common/ahead.cuh"
#include "kernels/common/column_sum.h"
#include "kernels/common/follow.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/qkv/qkv.h"

namespace perigee::kernels {

namespace {

constexpr int kMaxThreads = 128;
constexpr int kStages = 3;
constexpr int kMostBlocks = 8;  // of a multiprocessor

// A group of `lanes` neighbouring lanes works on one head of a row, a thread on the same columns of one token after the
// other: V runs of N values of the lower half of the head and the matching ones of the upper half. `threads` threads of
// a block work on one token; a block has one token or several side by side.
template <int N, int V>
struct Half {
    float values[V][N];
};

struct Place {
    QkvShape const& shape;
    int lanes;
    int side, sides;  ///< which of the tokens side by side, and of how many
    int heads;        ///< of the block
    int head, lane;

    __device__ Place(QkvShape const& s, int lanes_of_head, int threads)
        : shape(s),
          lanes(lanes_of_head),
          side(static_cast<int>(threadIdx.x) / threads),
          sides(static_cast<int>(blockDim.x) / threads),
          heads(threads / lanes),
          head(first_head() + static_cast<int>(threadIdx.x) % threads / lanes),
          lane(static_cast<int>(threadIdx.x) % lanes) {}

    /// Of the block.
    __device__ int first_head() const { return static_cast<int>(blockIdx.x) * heads; }
    /// This thread's first token, and the way to its next.
    __device__ int64_t first() const { return int64_t{blockIdx.y} * sides + side; }
    __device__ int64_t step() const { return int64_t{gridDim.y} * sides; }

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

__device__ __forceinline__ void* block_memory() {
    extern __shared__ __align__(16) unsigned char memory[];
    return memory;
}

/// A thread's part of one head of some tensors, fetched ahead for one token after the other.
template <int N, int V, int kTensors, int kStages>
class HeadsAhead {
  public:
    using Ring = Ahead<N, 2 * V * kTensors, kStages>;

    __device__ explicit HeadsAhead(Place const& place) : place_(place), ring_(block_memory()) {}

    /// Calls fetch(t) for the tokens that come first.
    template <class Fetch>
    __device__ __forceinline__ void begin(int64_t tokens, Fetch const& fetch) {
        for (int stage = 1; stage < kStages; ++stage)
            fetch_stage(place_.first() + (stage - 1) * place_.step(), tokens, fetch);
    }
    /// Makes token t current, and begins to fetch a later one.
    template <class Fetch>
    __device__ __forceinline__ void advance(int64_t t, int64_t tokens, Fetch const& fetch) {
        fetch_stage(t + (kStages - 1) * place_.step(), tokens, fetch);
        ring_.open_stage();
    }
    __device__ __forceinline__ void fetch(int tensor, bf16 const* from) {
        place_.runs<N, V>([&](int v, int i) {
            ring_.fetch((tensor * V + v) * 2, from + i);
            ring_.fetch((tensor * V + v) * 2 + 1, from + place_.half() + i);
        });
    }
    __device__ __forceinline__ void take(Half<N, V>& low, Half<N, V>& high, int tensor) const {
        place_.runs<N, V>([&](int v, int) {
            unpack(low.values[v], ring_.run((tensor * V + v) * 2));
            unpack(high.values[v], ring_.run((tensor * V + v) * 2 + 1));
        });
    }

  private:
    template <class Fetch>
    __device__ __forceinline__ void fetch_stage(int64_t t, int64_t tokens, Fetch const& fetch) {
        if (t < tokens) fetch(t);
        ring_.end_stage();
    }
    Place const& place_;
    Ring ring_;
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

/// A head's weights as they lie in memory, which takes half the registers.
template <int N, int V>
struct Weights {
    Run<bf16, N> runs[2][V];

    __device__ __forceinline__ void load(bf16 const* from, Place const& place) {
        place.runs<N, V>([&](int v, int i) {
            runs[0][v] = load_run<N>(from + i);
            runs[1][v] = load_run<N>(from + place.half() + i);
        });
    }
    __device__ __forceinline__ float low(int v, int j) const { return widen(runs[0][v].values[j]); }
    __device__ __forceinline__ float high(int v, int j) const { return widen(runs[1][v].values[j]); }
};

/// Calls f(v, j) for every value that a thread holds of either half of a head.
template <int N, int V, class F>
__device__ __forceinline__ void for_head(F const& f) {
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
        for (int j = 0; j < N; ++j) f(v, j);
}

/// A thread's part of the rotation of one token after the other, each fetched while the one before is worked on.
template <int N, int V>
class Angles {
  public:
    __device__ Angles(float const* cos, float const* sin, Place const& place)
        : cos_table_(cos), sin_table_(sin), place_(place) {
        fetch(place.first());
    }
    /// Makes token t current.
    __device__ __forceinline__ void advance(int64_t t) {
        cos_ = next_cos_, sin_ = next_sin_;
        fetch(t + place_.step());
    }
    /// (low, high) <- rotation by the angle, or by its negative where `direction` is -1.
    __device__ __forceinline__ void rotate(Half<N, V>& low, Half<N, V>& high, float direction) const {
        for_head<N, V>([&](int v, int j) {
            float const l = low.values[v][j], h = high.values[v][j];
            float const c = cos_.values[v][j], turned = direction * sin_.values[v][j];
            low.values[v][j] = l * c - h * turned;
            high.values[v][j] = h * c + l * turned;
        });
    }

  private:
    __device__ __forceinline__ void fetch(int64_t t) {
        if (t >= place_.shape.tokens || place_.is_v()) return;
        place_.runs<N, V>([&](int v, int i) {
            load(next_cos_.values[v], cos_table_ + t * place_.half() + i);
            load(next_sin_.values[v], sin_table_ + t * place_.half() + i);
        });
    }

    float const *cos_table_, *sin_table_;
    Place const& place_;
    Half<N, V> cos_ = {}, sin_ = {}, next_cos_ = {}, next_sin_ = {};
};

template <int N, int V, bool kBias, bool kNorm>
__global__ void __launch_bounds__(kMaxThreads) forward(QkvForward const a, int lanes, int threads) {
    Place const place(a.shape, lanes, threads);
    float const share = 1 / static_cast<float>(a.shape.size);
    bf16 const* const norm = place.is_v() ? nullptr : place.is_q() ? a.q_norm : a.k_norm;
    wait_for_previous();
    let_next_begin();
    Half<N, V> bias_low = {}, bias_high = {}, norm_low = {}, norm_high = {};
    if (kBias) load_head(bias_low, bias_high, a.bias + place.column(), place);
    if (kNorm && norm != nullptr) load_head(norm_low, norm_high, norm, place);
    bool const norms_in_warp = kNorm && __any_sync(kAllLanes, norm != nullptr);
    HeadsAhead<N, V, 1, kStages> heads(place);
    auto const row = [&](int64_t t) { return a.qkv + t * place.width() + place.column(); };
    auto const fetch = [&](int64_t t) { heads.fetch(0, row(t)); };
    heads.begin(a.shape.tokens, fetch);
    Angles<N, V> angles(a.cos, a.sin, place);
    for (int64_t t = place.first(); t < a.shape.tokens; t += place.step()) {
        angles.advance(t);
        heads.advance(t, a.shape.tokens, fetch);
        Half<N, V> low = {}, high = {};
        heads.take(low, high, 0);
        if (kBias) {
            for_head<N, V>([&](int v, int j) {  // rounded, as the backward will find it
                low.values[v][j] = widen(narrow<bf16>(low.values[v][j] + bias_low.values[v][j]));
                high.values[v][j] = widen(narrow<bf16>(high.values[v][j] + bias_high.values[v][j]));
            });
            store_head(row(t), low, high, place);
        }
        if (kNorm && norms_in_warp) {
            float squares = 0;
            for_head<N, V>([&](int v, int j) {
                squares += low.values[v][j] * low.values[v][j] + high.values[v][j] * high.values[v][j];
            });
            float const rstd = rsqrtf(group_sum(squares, lanes) * share + a.eps);
            if (norm != nullptr) {
                for_head<N, V>([&](int v, int j) {
                    low.values[v][j] *= rstd * norm_low.values[v][j];
                    high.values[v][j] *= rstd * norm_high.values[v][j];
                });
            }
        }
        if (!place.is_v()) angles.rotate(low, high, 1);
        store_head(place.split(a.q, a.k, a.v, t), low, high, place);
    }
}

/// Partial sums: dbias [groups, X]; of each block, dq_norm and dk_norm [blocks, K].
struct Partials {
    float *bias, *q_norm, *k_norm;
};

/// Of a block. With sums it is all that a multiprocessor works on, so that few partial sums are left.
template <bool kBias, bool kNorm>
constexpr int kBackwardThreads = kNorm   ? 512
                                 : kBias ? 640
                                         : kMaxThreads;
template <bool kBias, bool kNorm>
constexpr int kBackwardStages = kBias || kNorm ? 2 : kStages;

template <int N, int V, bool kBias, bool kNorm>
__global__ void __launch_bounds__(kBackwardThreads<kBias, kNorm>)
    backward(QkvBackward const a, Partials const partials, int lanes, int threads) {
    wait_for_previous();
    let_next_begin();
    Place const place(a.shape, lanes, threads);
    float const share = 1 / static_cast<float>(a.shape.size);
    bf16 const* const norm = place.is_v() ? nullptr : place.is_q() ? a.q_norm : a.k_norm;
    bool const normed = kNorm && norm != nullptr, norms_in_warp = kNorm && __any_sync(kAllLanes, normed);
    Weights<N, V> weights = {};
    Half<N, V> dbias_low = {}, dbias_high = {}, dnorm_low = {}, dnorm_high = {};
    if (normed) weights.load(norm, place);
    HeadsAhead<N, V, kNorm ? 2 : 1, kBackwardStages<kBias, kNorm>> heads(place);
    auto const fetch = [&](int64_t t) {
        heads.fetch(0, place.split(a.dq, a.dk, a.dv, t));
        if (normed) heads.fetch(1, a.qkv + t * place.width() + place.column());
    };
    heads.begin(a.shape.tokens, fetch);
    Angles<N, V> angles(a.cos, a.sin, place);
    for (int64_t t = place.first(); t < a.shape.tokens; t += place.step()) {
        angles.advance(t);
        heads.advance(t, a.shape.tokens, fetch);
        Half<N, V> low = {}, high = {};
        heads.take(low, high, 0);
        if (!place.is_v()) angles.rotate(low, high, -1);
        if (kNorm && norms_in_warp) {
            Half<N, V> x_low = {}, x_high = {};
            if (normed) heads.take(x_low, x_high, 1);
            float squares = 0, dot = 0;  // of x; of x and the gradient of the normalised x
            for_head<N, V>([&](int v, int j) {
                float const x_l = x_low.values[v][j], x_h = x_high.values[v][j];
                squares += x_l * x_l + x_h * x_h;
                dot += low.values[v][j] * weights.low(v, j) * x_l + high.values[v][j] * weights.high(v, j) * x_h;
            });
            squares = group_sum(squares, lanes), dot = group_sum(dot, lanes);
            float const rstd = rsqrtf(squares * share + a.eps), along_x = rstd * rstd * rstd * dot * share;
            if (normed) {
                for_head<N, V>([&](int v, int j) {
                    float& l = low.values[v][j];
                    float& h = high.values[v][j];
                    dnorm_low.values[v][j] += l * x_low.values[v][j] * rstd;
                    dnorm_high.values[v][j] += h * x_high.values[v][j] * rstd;
                    l = l * weights.low(v, j) * rstd - x_low.values[v][j] * along_x;
                    h = h * weights.high(v, j) * rstd - x_high.values[v][j] * along_x;
                });
            }
        }
        if (kBias) {
            for_head<N, V>([&](int v, int j) {
                dbias_low.values[v][j] += low.values[v][j];
                dbias_high.values[v][j] += high.values[v][j];
            });
        }
        store_head(a.dqkv + t * place.width() + place.column(), low, high, place);
    }
    if (!kBias && !kNorm) return;
    // Sums over the tokens side by side, where the memory of what was fetched is free.
    auto* const sums = static_cast<float*>(block_memory());
    int const columns = place.heads * a.shape.size, first_column = place.first_head() * a.shape.size;
    auto const add_sides = [&](Half<N, V> const& low, Half<N, V> const& high) {
        float* const mine = sums + place.side * columns + place.column() - first_column;
        __syncthreads();
        place.runs<N, V>([&](int v, int i) {
            store(mine + i, low.values[v]);
            store(mine + place.half() + i, high.values[v]);
        });
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < columns; i += static_cast<int>(blockDim.x))
            for (int side = 1; side < place.sides; ++side) sums[i] += sums[side * columns + i];
        __syncthreads();
    };
    if (kBias) {
        add_sides(dbias_low, dbias_high);
        float* const to = partials.bias + blockIdx.y * place.width() + first_column;
        int const own = min(columns, place.width() - first_column);
        for (int i = static_cast<int>(threadIdx.x); i < own; i += static_cast<int>(blockDim.x)) to[i] = sums[i];
    }
    if (!kNorm) return;
    add_sides(dnorm_low, dnorm_high);
    int64_t const row = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
    int const q_heads = max(0, min(place.heads, a.shape.heads - place.first_head())),
              normed_heads = min(place.heads, a.shape.heads + a.shape.kv_heads - place.first_head());
    for (int k = static_cast<int>(threadIdx.x); k < a.shape.size; k += static_cast<int>(blockDim.x)) {
        float q_sum = 0, k_sum = 0;
        for (int head = 0; head < q_heads; ++head) q_sum += sums[head * a.shape.size + k];
        for (int head = q_heads; head < normed_heads; ++head) k_sum += sums[head * a.shape.size + k];
        partials.q_norm[row * a.shape.size + k] = q_sum;
        partials.k_norm[row * a.shape.size + k] = k_sum;
    }
}

int64_t width_of(QkvShape const& shape) { return int64_t{shape.heads + 2 * shape.kv_heads} * shape.size; }

struct Plan {
    bool eights;
    int lanes;
    unsigned threads;
    int64_t across;  ///< blocks that hold a row
    bool even;       ///< all of them as much, so that each may have a multiprocessor of its own
};

Plan plan(QkvShape const& shape, bool aligned) {
    bool const eights = aligned && shape.size % 16 == 0;
    int const runs = static_cast<int>(ceil_div(shape.size / 2, eights ? 8 : 1));
    int lanes = 1;
    while (lanes < runs && lanes < 32) lanes *= 2;
    int64_t const work = int64_t{shape.heads + 2 * shape.kv_heads} * lanes, across = ceil_div(work, kMaxThreads);
    int64_t const threads = round_up(ceil_div(work, across), 32);
    return {eights, lanes, static_cast<unsigned>(threads), across, across == 1 || threads * across == work};
}

/// Groups of tokens, each of which leaves partial sums: enough to fill the GPU.
int64_t most_groups(QkvShape const& shape, Plan const& p) {
    return std::clamp<int64_t>(multiprocessors() * kMostBlocks / p.across, 1, std::min<int64_t>(shape.tokens, 65535));
}

/// Floats of partial sums: dbias, and dq_norm and dk_norm each.
struct Sums {
    int64_t bias, norm;
};
Sums most_sums(QkvShape const& shape, Plan const& p, bool bias) {
    int64_t const groups = most_groups(shape, p);
    return {bias ? groups * width_of(shape) : 0, groups * p.across * shape.size};
}

/// Launches a kernel in blocks of `threads` threads, `most` on a multiprocessor, that fetch heads ahead through a
/// `Ring`, and returns the number of groups.
template <class Ring, class... Args>
int64_t launch(void (*kernel)(Args...), QkvShape const& shape, Plan const& p, unsigned threads, int most,
               cudaStream_t stream, std::type_identity_t<Args>... args) {
    size_t const shared = Ring::bytes(threads);
    int64_t const resident = resident_blocks(kernel, threads, shared);
    int64_t const blocks = std::min(resident, multiprocessors() * most);
    int64_t const groups = std::clamp<int64_t>(blocks / p.across, 1, most_groups(shape, p));
    dim3 const grid(static_cast<unsigned>(p.across), static_cast<unsigned>(groups));
    if (blocks == resident)
        follow(kernel, grid, dim3(threads), shared, stream, args...);
    else  // blocks that begin early would crowd on the multiprocessors that are free first
        kernel<<<grid, threads, shared, stream>>>(args...);
    return groups;
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
    Plan const p = plan(args.shape, aligned);
    bool const norm = args.q_norm != nullptr || args.k_norm != nullptr;
    with_options(p.eights, args.bias != nullptr, norm, [&]<int N, int V, bool kBias, bool kNorm>() {
        launch<typename HeadsAhead<N, V, 1, kStages>::Ring>(forward<N, V, kBias, kNorm>, args.shape, p, p.threads,
                                                            kBias ? 5 : kMostBlocks,  // measured
                                                            stream, args, p.lanes, static_cast<int>(p.threads));
    });
    check_launch("qkv_forward");
}

size_t qkv_backward_scratch(QkvShape const& shape, bool bias, bool norms) {
    if (shape.tokens == 0) return 0;
    int64_t most = 0;
    for (bool aligned : {false, true}) {
        Sums const sums = most_sums(shape, plan(shape, aligned), bias);
        most = std::max(most, sums.bias + (norms ? 2 * sums.norm : 0));
    }
    return static_cast<size_t>(most) * sizeof(float);
}

void qkv_backward(QkvBackward const& args, cudaStream_t stream) {
    QkvShape const& shape = args.shape;
    if (shape.tokens == 0) return;
    bool const bias = args.dbias_accumulated != nullptr, norm = args.q_norm != nullptr || args.k_norm != nullptr;
    bool const aligned = in_runs_of_eight(0, {args.dqkv, args.dq, args.dk, args.dv, args.qkv, args.cos, args.sin,
                                              args.q_norm, args.k_norm, args.scratch});
    Plan const p = plan(shape, aligned);
    Sums const sums = most_sums(shape, p, bias);
    float* const q_sums = args.scratch + sums.bias;
    float* const k_sums = q_sums + sums.norm;
    int64_t groups = 0;
    with_options(p.eights, bias, norm, [&]<int N, int V, bool kBias, bool kNorm>() {
        using Ring = typename HeadsAhead<N, V, kNorm ? 2 : 1, kBackwardStages<kBias, kNorm>>::Ring;
        unsigned const sides = p.even ? std::max(1u, kBackwardThreads<kBias, kNorm> / p.threads) : 1;
        groups = launch<Ring>(backward<N, V, kBias, kNorm>, shape, p, sides * p.threads, kMostBlocks, stream, args,
                              Partials{args.scratch, q_sums, k_sums}, p.lanes, static_cast<int>(p.threads));
    });
    check_launch("qkv_backward");
    int64_t const blocks = groups * p.across;
    add_columns({{args.dbias_accumulated, args.scratch, groups, width_of(shape)},
                 {args.q_norm != nullptr ? args.dq_norm_accumulated : nullptr, q_sums, blocks, shape.size},
                 {args.k_norm != nullptr ? args.dk_norm_accumulated : nullptr, k_sums, blocks, shape.size}},
                stream);
}

}  // namespace perigee::kernels
