#include "kernels/common/column_sum.h"
#include "kernels/qkv/heads.cuh"

namespace perigee::kernels {

namespace {

/// Partial sums: dbias [token groups, X]; of each block, dq_norm and dk_norm [blocks, K].
struct Partials {
    float *bias, *q_norm, *k_norm;
};

/// With sums, a block is all that a multiprocessor works on: few partial sums are left. kNarrow: what blocks of 99 KiB
/// have room for.
template <bool kBias, bool kNorm, bool kNarrow>
constexpr int kThreads = kNorm   ? (kNarrow ? 384 : 512)
                         : kBias ? (kNarrow ? 512 : 640)
                                 : kThreadsWithoutSums;
template <int N, int V, bool kBias, bool kNorm, bool kNarrow>
using Fetched = HeadsAhead<N, V, kNorm ? 2 : 1, kBias || kNorm ? 2 : 3, kThreads<kBias, kNorm, kNarrow>>;

/// The sums over a block's tokens, of each of its heads.
template <int N, int V>
struct Sums {
    Half<N, V> low = {}, high = {};

    /// Stores their sums over the block's tokens in `memory`, [heads, K].
    __device__ void join(Place const& place, float* memory) const {
        int const columns = place.heads * place.shape.size;
        float* const mine =
            memory + place.token_in_block * columns + place.column() - place.first_head() * place.shape.size;
        __syncthreads();
        place.runs<N, V>([&](int v, int i) {
            store(mine + i, low.values[v]);
            store(mine + place.half() + i, high.values[v]);
        });
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < columns; i += static_cast<int>(blockDim.x)) {
            float sum = 0;
            for (int token = 0; token < place.tokens_per_block; ++token) sum += memory[token * columns + i];
            memory[i] = sum;
        }
        __syncthreads();
    }
};

template <int N, int V, bool kBias, bool kNorm>
__device__ void leave_sums(QkvBackward const& a, Partials const& partials, Place const& place, Sums<N, V> const& dbias,
                           Sums<N, V> const& dnorm) {
    auto* const sums = static_cast<float*>(block_memory());  // that of what was fetched, which has been used
    int const first = place.first_head(), size = a.shape.size, all = a.shape.heads + 2 * a.shape.kv_heads;
    auto const thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    if constexpr (kBias) {
        dbias.join(place, sums);
        float* const to = partials.bias + blockIdx.y * place.width() + first * size;
        for (int i = thread; i < min(place.heads, all - first) * size; i += threads) to[i] = sums[i];
    }
    if constexpr (kNorm) {
        dnorm.join(place, sums);
        int64_t const row = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
        int const q_heads = max(0, min(place.heads, a.shape.heads - first)),
                  normed_heads = min(place.heads, a.shape.heads + a.shape.kv_heads - first);
        for (int k = thread; k < size; k += threads) {
            float q_sum = 0, k_sum = 0;
            for (int head = 0; head < q_heads; ++head) q_sum += sums[head * size + k];
            for (int head = q_heads; head < normed_heads; ++head) k_sum += sums[head * size + k];
            partials.q_norm[row * size + k] = q_sum;
            partials.k_norm[row * size + k] = k_sum;
        }
    }
}

template <int N, int V, bool kBias, bool kNorm, bool kNarrow>
__global__ void __launch_bounds__(kThreads<kBias, kNorm, kNarrow>)
    backward(QkvBackward const a, Partials const partials, int lanes, int heads_of_block) {
    Place const place(a.shape, lanes, heads_of_block);
    float const share = 1 / static_cast<float>(a.shape.size);
    bf16 const* const norm = place.is_v() ? nullptr : place.is_q() ? a.q_norm : a.k_norm;
    bool const normed = kNorm && norm != nullptr;
    Fetched<N, V, kBias, kNorm, kNarrow> heads(place, block_memory(), walk_split(a.dq, a.dk, a.dv, place),
                                               normed ? walk_joined(a.qkv, place) : Walk<bf16 const>{}, a.cos, a.sin);
    wait_for_previous();
    let_next_begin();
    heads.begin();
    Weights<N, V> weights = {};
    if (normed) weights.load(norm, place);
    Sums<N, V> dbias, dnorm;
    auto to = walk_joined(a.dqkv, place);
    for (int left = place.count(); left > 0; --left, to.advance()) {
        heads.advance();
        Half<N, V> low, high;
        float squares = 0, dot = 0;  // of x; of x and the gradient of the normalised x
        place.runs<N, V>([&](int v, int) {
            heads.take(low.values[v], high.values[v], 0, v);
            heads.rotate(low.values[v], high.values[v], v, -1);
            if (normed) {
                float x_low[N], x_high[N], w_low[N], w_high[N];
                heads.take(x_low, x_high, 1, v);
                weights.widen(w_low, w_high, v);
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    squares += x_low[j] * x_low[j] + x_high[j] * x_high[j];
                    dot += low.values[v][j] * w_low[j] * x_low[j] + high.values[v][j] * w_high[j] * x_high[j];
                }
            }
        });
        if (normed) {
            squares = place.sum(squares), dot = place.sum(dot);
            float const rstd = rsqrtf(squares * share + a.eps), along_x = rstd * rstd * dot * share;
            place.runs<N, V>([&](int v, int) {
                float x_low[N], x_high[N], w_low[N], w_high[N];
                heads.take(x_low, x_high, 1, v);
                weights.widen(w_low, w_high, v);
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    float& l = low.values[v][j];
                    float& h = high.values[v][j];
                    float const normed_low = x_low[j] * rstd, normed_high = x_high[j] * rstd;
                    dnorm.low.values[v][j] += l * normed_low;
                    dnorm.high.values[v][j] += h * normed_high;
                    l = l * w_low[j] * rstd - normed_low * along_x;
                    h = h * w_high[j] * rstd - normed_high * along_x;
                }
            });
        }
        place.runs<N, V>([&](int v, int i) {
            if constexpr (kBias) {
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    dbias.low.values[v][j] += low.values[v][j];
                    dbias.high.values[v][j] += high.values[v][j];
                }
            }
            store(to.at + i, low.values[v]);
            store(to.at + place.half() + i, high.values[v]);
        });
    }
    leave_sums<N, V, kBias, kNorm>(a, partials, place, dbias, dnorm);
}

int64_t width_of(QkvShape const& shape) { return int64_t{shape.heads + 2 * shape.kv_heads} * shape.size; }

template <int N, int V, bool kBias, bool kNorm, bool kNarrow>
void launch_backward(QkvBackward const& args, cudaStream_t stream) {
    QkvShape const& shape = args.shape;
    auto* const kernel = backward<N, V, kBias, kNorm, kNarrow>;
    using Ring = typename Fetched<N, V, kBias, kNorm, kNarrow>::Ring;
    Plan const p =
        plan<Ring>(shape, N * V, kThreads<kBias, kNorm, kNarrow>, kBias || kNorm ? 1 : kBlocksWithoutSums, kernel);
    float* const q_sums = args.scratch + (kBias ? p.token_groups * width_of(shape) : 0);
    float* const k_sums = q_sums + p.token_groups * p.blocks_per_token * shape.size;
    p.launch("qkv_backward", kernel, stream, args, Partials{args.scratch, q_sums, k_sums});
    int64_t const blocks = p.token_groups * p.blocks_per_token;
    add_columns({{args.dbias_accumulated, args.scratch, p.token_groups, width_of(shape)},
                 {args.q_norm != nullptr ? args.dq_norm_accumulated : nullptr, q_sums, blocks, shape.size},
                 {args.k_norm != nullptr ? args.dk_norm_accumulated : nullptr, k_sums, blocks, shape.size}},
                stream);
}

}  // namespace

size_t qkv_backward_scratch(QkvShape const& shape, bool bias, bool norms) {
    int64_t const token_groups = multiprocessors(),
                  blocks = std::max<int64_t>(token_groups, shape.heads + 2 * shape.kv_heads);
    return static_cast<size_t>((bias ? token_groups * width_of(shape) : 0) + (norms ? 2 * blocks * shape.size : 0)) *
           sizeof(float);
}

void qkv_backward(QkvBackward const& args, cudaStream_t stream) {
    QkvShape const& shape = args.shape;
    if (shape.tokens == 0) return;
    bool const bias = args.dbias_accumulated != nullptr, norm = args.q_norm != nullptr || args.k_norm != nullptr;
    bool const aligned = in_runs_of_eight(0, {args.dqkv, args.dq, args.dk, args.dv, args.qkv, args.cos, args.sin,
                                              args.q_norm, args.k_norm, args.scratch});
    with_options(shape, aligned, bias, norm, [&]<int N, int V, bool kBias, bool kNorm>() {
        using Wide = typename Fetched<N, V, kBias, kNorm, false>::Ring;
        constexpr size_t kWide = Wide::bytes(kThreads<kBias, kNorm, false>);
        if constexpr (kWide > kLeastShared)
            if (kWide > room_for_shared(backward<N, V, kBias, kNorm, false>))
                return launch_backward<N, V, kBias, kNorm, true>(args, stream);
        launch_backward<N, V, kBias, kNorm, false>(args, stream);
    });
}

}  // namespace perigee::kernels
