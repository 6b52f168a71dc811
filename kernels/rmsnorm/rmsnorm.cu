#include <algorithm>
#include <type_traits>

#include "kernels/common/column_sum.h"
#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/rmsnorm/rmsnorm.h"

namespace perigee::kernels {

namespace {

constexpr int kMaxThreads = 512;

// One block holds a row: thread i has the runs i, i + blockDim.x, ... of N values, V at most.
template <int N, int V>
struct Row {
    Run<bf16, N> runs[V];

    static __device__ __forceinline__ int column(int v) {
        return (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * N;
    }
    __device__ __forceinline__ void load(bf16 const* from, int width) {
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (column(v) < width) runs[v] = load_run<N>(from + column(v));
    }
};

template <int N, int V>
__global__ void __launch_bounds__(kMaxThreads) forward(RmsNormForward const a) {
    int const width = static_cast<int>(a.width);
    for (int64_t t = blockIdx.x; t < a.tokens; t += gridDim.x) {
        Row<N, V> x, residual;
        x.load(a.x + t * a.width, width);
        if (a.residual != nullptr) residual.load(a.residual + t * a.width, width);
        float squares = 0;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            int const i = x.column(v);
            if (i >= width) continue;
            float values[N];
            unpack(values, x.runs[v]);
            if (a.residual != nullptr) {
                float other[N];
                unpack(other, residual.runs[v]);
#pragma unroll
                for (int j = 0; j < N; ++j) values[j] += other[j];
                x.runs[v] = pack<bf16>(values);
                store_run<N>(a.sum + t * a.width + i, x.runs[v]);
                unpack(values, x.runs[v]);  // the backward sees the rounded sum
            }
#pragma unroll
            for (int j = 0; j < N; ++j) squares += values[j] * values[j];
        }
        float const rstd = 1 / sqrtf(block_sum(squares) / static_cast<float>(a.width) + a.eps);
        if (threadIdx.x == 0) a.rstd[t] = rstd;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            int const i = x.column(v);
            if (i >= width) continue;
            float values[N], weights[N];
            unpack(values, x.runs[v]);
            load(weights, a.w + i);
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] *= rstd * weights[j];
            store(a.y + t * a.width + i, values);
        }
    }
}

template <int N, int V>
__global__ void __launch_bounds__(kMaxThreads) backward(RmsNormBackward const a) {
    int const width = static_cast<int>(a.width);
    constexpr bool kEarly = V * N <= 16;  // wider rows have no registers left to fetch the third tensor ahead
    float dw[V][N] = {};
    for (int64_t t = blockIdx.x; t < a.tokens; t += gridDim.x) {
        Row<N, V> x, dy, dresidual;
        x.load(a.x + t * a.width, width);
        dy.load(a.dy + t * a.width, width);
        if (kEarly && a.dresidual != nullptr) dresidual.load(a.dresidual + t * a.width, width);
        float const rstd = a.rstd[t];
        float dot = 0;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            int const i = x.column(v);
            if (i >= width) continue;
            float values[N], gradients[N], weights[N];
            unpack(values, x.runs[v]);
            unpack(gradients, dy.runs[v]);
            load(weights, a.w + i);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                float const of_w = gradients[j] * values[j] * rstd;
                dw[v][j] += of_w;
                dot += of_w * weights[j];
            }
        }
        float const along_x = rstd * rstd * block_sum(dot) / static_cast<float>(a.width);
#pragma unroll
        for (int v = 0; v < V; ++v) {
            int const i = x.column(v);
            if (i >= width) continue;
            float values[N], gradients[N], weights[N], joined[N] = {};
            unpack(values, x.runs[v]);
            unpack(gradients, dy.runs[v]);
            load(weights, a.w + i);
            if (kEarly && a.dresidual != nullptr) unpack(joined, dresidual.runs[v]);
            if (!kEarly && a.dresidual != nullptr) load(joined, a.dresidual + t * a.width + i);
#pragma unroll
            for (int j = 0; j < N; ++j) joined[j] += gradients[j] * weights[j] * rstd - values[j] * along_x;
            store(a.dx + t * a.width + i, joined);
        }
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
        int const i = Row<N, V>::column(v);
        if (i < width) store(a.scratch + blockIdx.x * a.width + i, dw[v]);
    }
}

template <int N, int V>
struct Holding {
    static constexpr int kRun = N, kRuns = V;
};

/// Calls `launch(Holding, threads)` with the smallest block that holds a row.
template <class Launch>
void with_row_in_registers(int64_t width, bool eights, Launch const& launch) {
    auto const threads = [&](int held) { return static_cast<unsigned>(round_up(ceil_div(width, held), 32)); };
    if (!eights)
        launch(Holding<1, 8>{}, threads(8));
    else if (width <= 8 * 2 * kMaxThreads)
        launch(Holding<8, 2>{}, threads(16));
    else
        launch(Holding<8, 4>{}, threads(32));
}

/// Enough blocks to fill the GPU, each for many rows.
int64_t resident_blocks(int64_t tokens, int64_t threads) {
    return std::min(tokens, multiprocessors() * std::max<int64_t>(1024 / threads, 1));
}
int64_t backward_blocks(int64_t tokens, int64_t width) {
    return resident_blocks(tokens, std::clamp<int64_t>(round_up(ceil_div(width, 16), 32), 128, kMaxThreads));
}

}  // namespace

void rmsnorm_forward(RmsNormForward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    bool const eights = in_runs_of_eight(args.width, {args.y, args.x, args.w, args.residual, args.sum});
    with_row_in_registers(args.width, eights, [&]<class H>(H, unsigned threads) {
        auto const blocks = static_cast<unsigned>(resident_blocks(args.tokens, std::max(threads / 2, 32u)));
        forward<H::kRun, H::kRuns><<<blocks, threads, 0, stream>>>(args);
    });
    check_launch("rmsnorm_forward");
}

size_t rmsnorm_backward_scratch(int64_t tokens, int64_t width) {
    return static_cast<size_t>(backward_blocks(tokens, width) * width) * sizeof(float);
}

void rmsnorm_backward(RmsNormBackward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    bool const eights = in_runs_of_eight(args.width, {args.dx, args.dy, args.x, args.w, args.dresidual, args.scratch});
    int64_t const blocks = backward_blocks(args.tokens, args.width);
    with_row_in_registers(args.width, eights, [&]<class H>(H, unsigned threads) {
        backward<H::kRun, H::kRuns><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(args);
    });
    check_launch("rmsnorm_backward");
    column_sum(args.dw_accumulated, args.scratch, blocks, args.width, stream);
}

}  // namespace perigee::kernels
