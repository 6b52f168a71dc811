#include <algorithm>
#include <array>

#include "kernels/common/ahead.cuh"
#include "kernels/common/column_sum.h"
#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/rmsnorm/rmsnorm.h"

namespace perigee::kernels {

namespace {

constexpr int kMaxThreads = 512;

// One block holds a row: thread i has the runs i, i + blockDim.x, ... of N values, V at most. Rows that a block comes
// to later are fetched while it works on this one.
template <int N, int V, int kTensors, int kS = 3>
class Rows {
  public:
    static constexpr int kStages = V * N <= 16 ? kS : 1;  // wider rows leave no room for others
    using Ring = Ahead<N, V * kTensors, kStages>;

    __device__ Rows(std::array<bf16 const*, kTensors> const& tensors, int64_t tokens, int64_t width)
        : tensors_(tensors), tokens_(tokens), width_(width), next_(blockIdx.x), ring_(memory()) {
        for (int stage = 1; stage < kStages; ++stage) fetch();
    }
    /// Makes the next row of this block current.
    __device__ __forceinline__ void advance() {
        fetch();
        ring_.open_stage();
    }
    __device__ __forceinline__ void values(float (&to)[N], int tensor, int v) const {
        unpack(to, ring_.run(tensor * V + v));
    }
    /// Calls f(v, i) for each run of this thread; i is its first column.
    template <class F>
    __device__ __forceinline__ void runs(F const& f) const {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            int const i = (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * N;
            if (i < width_) f(v, i);
        }
    }

  private:
    static __device__ void* memory() {
        extern __shared__ __align__(16) unsigned char memory[];
        return memory;
    }
    __device__ __forceinline__ void fetch() {
        if (next_ < tokens_) {
#pragma unroll
            for (int tensor = 0; tensor < kTensors; ++tensor)
                if (tensors_[tensor] != nullptr)
                    runs([&](int v, int i) { ring_.fetch(tensor * V + v, tensors_[tensor] + next_ * width_ + i); });
        }
        ring_.end_stage();
        next_ += gridDim.x;
    }

    std::array<bf16 const*, kTensors> tensors_;
    int64_t tokens_, width_, next_;
    Ring ring_;
};

template <int N, int V, int kStages>
__global__ void __launch_bounds__(kMaxThreads) forward(RmsNormForward const a) {
    Rows<N, V, 2, kStages> rows({a.x, a.residual}, a.tokens, a.width);
    Run<bf16, N> weights[V];
    rows.runs([&](int v, int i) { weights[v] = load_run<N>(a.w + i); });
    for (int64_t t = blockIdx.x; t < a.tokens; t += gridDim.x) {
        rows.advance();
        float x[V][N];
        float squares = 0;
        rows.runs([&](int v, int i) {
            rows.values(x[v], 0, v);
            if (a.residual != nullptr) {
                float other[N];
                rows.values(other, 1, v);
#pragma unroll
                for (int j = 0; j < N; ++j) x[v][j] += other[j];
                Run<bf16, N> const sum = pack<bf16>(x[v]);
                store_run<N>(a.sum + t * a.width + i, sum);
                unpack(x[v], sum);  // the backward sees the rounded sum
            }
#pragma unroll
            for (int j = 0; j < N; ++j) squares += x[v][j] * x[v][j];
        });
        float const rstd = 1 / sqrtf(block_sum(squares) / static_cast<float>(a.width) + a.eps);
        if (threadIdx.x == 0) a.rstd[t] = rstd;
        rows.runs([&](int v, int i) {
#pragma unroll
            for (int j = 0; j < N; ++j) x[v][j] *= rstd * widen(weights[v].values[j]);
            store(a.y + t * a.width + i, x[v]);
        });
    }
}

template <int N, int V, int kStages>
__global__ void __launch_bounds__(kMaxThreads) backward(RmsNormBackward const a) {
    Rows<N, V, 3, kStages> rows({a.x, a.dy, a.dresidual}, a.tokens, a.width);
    float dw[V][N] = {};
    for (int64_t t = blockIdx.x; t < a.tokens; t += gridDim.x) {
        float const rstd = a.rstd[t];
        rows.advance();
        float dot = 0;
        rows.runs([&](int v, int i) {
            float x[N], dy[N], weights[N];
            rows.values(x, 0, v);
            rows.values(dy, 1, v);
            load(weights, a.w + i);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                float const of_w = dy[j] * x[j] * rstd;
                dw[v][j] += of_w;
                dot += of_w * weights[j];
            }
        });
        float const along_x = rstd * rstd * block_sum(dot) / static_cast<float>(a.width);
        rows.runs([&](int v, int i) {
            float x[N], dy[N], weights[N], dx[N] = {};
            rows.values(x, 0, v);
            rows.values(dy, 1, v);
            load(weights, a.w + i);
            if (a.dresidual != nullptr) rows.values(dx, 2, v);
#pragma unroll
            for (int j = 0; j < N; ++j) dx[j] += dy[j] * weights[j] * rstd - x[j] * along_x;
            store(a.dx + t * a.width + i, dx);
        });
    }
    rows.runs([&](int v, int i) { store(a.scratch + blockIdx.x * a.width + i, dw[v]); });
}

template <int N, int V>
struct Holding {
    static constexpr int kRun = N, kRuns = V;
    static constexpr int kStages = V * N <= 16 ? 3 : 1;  // wider rows leave no room for others
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

/// Each block leaves a row of partial sums.
int64_t most_backward_blocks(int64_t tokens) { return std::min(tokens, multiprocessors() * 8); }

}  // namespace

void rmsnorm_forward(RmsNormForward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    bool const eights = in_runs_of_eight(args.width, {args.y, args.x, args.w, args.residual, args.sum});
    with_row_in_registers(args.width, eights, [&]<class H>(H, unsigned threads) {
        auto const launch = [&]<int kStages>(bool row_by_row) {
            auto* const kernel = forward<H::kRun, H::kRuns, kStages>;
            size_t const shared = Rows<H::kRun, H::kRuns, 2, kStages>::Ring::bytes(threads);
            int64_t const resident = resident_blocks(kernel, threads, shared);
            auto const blocks = static_cast<unsigned>(row_by_row ? args.tokens : std::min(args.tokens, resident));
            kernel<<<blocks, threads, shared, stream>>>(args);
        };
        // Measured: with two tensors to read, a block for each row keeps more of memory busy than fetching ahead.
        if (args.residual != nullptr)
            launch.template operator()<1>(true);
        else
            launch.template operator()<H::kStages>(false);
    });
    check_launch("rmsnorm_forward");
}

size_t rmsnorm_backward_scratch(int64_t tokens, int64_t width) {
    return static_cast<size_t>(most_backward_blocks(tokens) * width) * sizeof(float);
}

void rmsnorm_backward(RmsNormBackward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    bool const eights = in_runs_of_eight(args.width, {args.dx, args.dy, args.x, args.w, args.dresidual, args.scratch});
    int64_t blocks = most_backward_blocks(args.tokens);
    with_row_in_registers(args.width, eights, [&]<class H>(H, unsigned threads) {
        auto* const kernel = backward<H::kRun, H::kRuns, H::kStages>;
        size_t const shared = Rows<H::kRun, H::kRuns, 3, H::kStages>::Ring::bytes(threads);
        blocks = std::min(blocks, resident_blocks(kernel, threads, shared));
        kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(args);
    });
    check_launch("rmsnorm_backward");
    column_sum(args.dw_accumulated, args.scratch, blocks, args.width, stream);
}

}  // namespace perigee::kernels
