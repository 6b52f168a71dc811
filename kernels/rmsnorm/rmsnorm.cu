#include <algorithm>
#include <array>

#include "kernels/common/ahead.cuh"
#include "kernels/common/column_sum.h"
#include "kernels/common/follow.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/rmsnorm/rmsnorm.h"

namespace perigee::kernels {

namespace {

constexpr int kMaxThreads = 512;
constexpr int kForwardThreads = 768;   // of a multiprocessor, one row of each block fetched ahead: more are slower
constexpr int kBackwardThreads = 768;  // of a multiprocessor, in one block: few rows of partial sums

// Some threads hold a row: thread i of them has the runs i, i + threads, ... of N values, V at most. A block works on
// one row or on several side by side; rows that it comes to later are fetched meanwhile.
template <int N, int V, int kTensors, int kStages>
class Rows {
  public:
    using Ring = Ahead<N, V * kTensors, kStages>;

    __device__ Rows(std::array<bf16 const*, kTensors> const& tensors, int64_t tokens, int64_t width, int threads)
        : tensors_(tensors),
          tokens_(tokens),
          width_(width),
          threads_(threads),
          row_(static_cast<int>(threadIdx.x) / threads),
          next_(first()),
          ring_(memory()) {
        for (int stage = 1; stage < kStages; ++stage) fetch();
    }
    static __device__ float* memory() {
        extern __shared__ __align__(16) unsigned char memory[];
        return reinterpret_cast<float*>(memory);
    }
    /// Which of the rows side by side this thread is in, and of how many.
    __device__ int row() const { return row_; }
    __device__ int side_by_side() const { return static_cast<int>(blockDim.x) / threads_; }
    /// The token of this thread's first row, and the way to that of the next.
    __device__ int64_t first() const { return int64_t{blockIdx.x} * side_by_side() + row_; }
    __device__ int64_t step() const { return int64_t{gridDim.x} * side_by_side(); }
    /// Makes the next row current.
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
        int const thread = static_cast<int>(threadIdx.x) - row_ * threads_;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            int const i = (v * threads_ + thread) * N;
            if (i < width_) f(v, i);
        }
    }
    /// Over the threads of the row, all of which receive it. All threads of the block call.
    __device__ __forceinline__ float sum(float x) {
        __shared__ float of_warps[2][32];
        x = warp_sum(x);
        if (threads_ == 32) return x;
        int const lane = static_cast<int>(threadIdx.x % 32), warps = threads_ / 32;
        if (lane == 0) of_warps[turn_][threadIdx.x / 32] = x;
        __syncthreads();
        x = lane < warps ? of_warps[turn_][row_ * warps + lane] : 0;
        turn_ ^= 1;  // what was read here is written again after another barrier
        return warp_sum(x);
    }

  private:
    __device__ __forceinline__ void fetch() {
        if (next_ < tokens_) {
#pragma unroll
            for (int tensor = 0; tensor < kTensors; ++tensor)
                if (tensors_[tensor] != nullptr)
                    runs([&](int v, int i) { ring_.fetch(tensor * V + v, tensors_[tensor] + next_ * width_ + i); });
        }
        ring_.end_stage();
        next_ += step();
    }

    std::array<bf16 const*, kTensors> tensors_;
    int64_t tokens_, width_;
    int threads_, row_, turn_ = 0;
    int64_t next_;
    Ring ring_;
};

template <int N, int V, int kStages>
__global__ void __launch_bounds__(kMaxThreads) forward(RmsNormForward const a) {
    wait_for_previous();
    let_next_begin();
    Rows<N, V, 2, kStages> rows({a.x, a.residual}, a.tokens, a.width, static_cast<int>(blockDim.x));
    Run<bf16, N> weights[V];
    rows.runs([&](int v, int i) { weights[v] = load_run<N>(a.w + i); });
    for (int64_t t = rows.first(); t < a.tokens; t += rows.step()) {
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
        float const rstd = 1 / sqrtf(rows.sum(squares) / static_cast<float>(a.width) + a.eps);
        if (threadIdx.x == 0) a.rstd[t] = rstd;
        rows.runs([&](int v, int i) {
#pragma unroll
            for (int j = 0; j < N; ++j) x[v][j] *= rstd * widen(weights[v].values[j]);
            store(a.y + t * a.width + i, x[v]);
        });
    }
}

template <int N, int V>
constexpr int kThreadsOfBackward = N* V == 16 ? kBackwardThreads : kMaxThreads;

template <int N, int V, int kStages>
__global__ void __launch_bounds__(kThreadsOfBackward<N, V>) backward(RmsNormBackward const a, int threads) {
    wait_for_previous();
    let_next_begin();
    Rows<N, V, 3, kStages> rows({a.x, a.dy, a.dresidual}, a.tokens, a.width, threads);
    Run<bf16, N> packed_weights[V];
    rows.runs([&](int v, int i) { packed_weights[v] = load_run<N>(a.w + i); });
    float dw[V][N] = {};
    for (int64_t t = rows.first(); t - rows.row() < a.tokens; t += rows.step()) {
        bool const there = t < a.tokens;  // else only other rows side by side are
        float const rstd = there ? a.rstd[t] : 0;
        rows.advance();
        float dot = 0;
        rows.runs([&](int v, int) {
            if (!there) return;
            float x[N], dy[N], weights[N];
            rows.values(x, 0, v);
            rows.values(dy, 1, v);
            unpack(weights, packed_weights[v]);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                float const of_w = dy[j] * x[j] * rstd;
                dw[v][j] += of_w;
                dot += of_w * weights[j];
            }
        });
        float const along_x = rstd * rstd * rows.sum(dot) / static_cast<float>(a.width);
        rows.runs([&](int v, int i) {
            if (!there) return;
            float x[N], dy[N], weights[N], dx[N] = {};
            rows.values(x, 0, v);
            rows.values(dy, 1, v);
            unpack(weights, packed_weights[v]);
            if (a.dresidual != nullptr) rows.values(dx, 2, v);
#pragma unroll
            for (int j = 0; j < N; ++j) dx[j] += dy[j] * weights[j] * rstd - x[j] * along_x;
            store(a.dx + t * a.width + i, dx);
        });
    }
    // Sums over the rows side by side, in the memory of those that were fetched, which have been used.
    __syncthreads();
    float* const of_rows = rows.memory();
    rows.runs([&](int v, int i) { store(of_rows + rows.row() * a.width + i, dw[v]); });
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.width; i += static_cast<int>(blockDim.x)) {
        float sum = 0;
        for (int row = 0; row < rows.side_by_side(); ++row) sum += of_rows[row * a.width + i];
        a.scratch[blockIdx.x * a.width + i] = sum;
    }
}

template <int N, int V>
struct Holding {
    static constexpr int kRun = N, kRuns = V;
    /// Wider rows leave no room for others, and single values are not fetched while others are worked on.
    static constexpr int stages(int wanted) { return N > 1 && V * N <= 16 ? wanted : 1; }
};

/// Calls `launch(Holding, threads)` with the smallest number of threads that hold a row.
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
int64_t most_backward_blocks(int64_t tokens) { return std::min(tokens, multiprocessors()); }

}  // namespace

void rmsnorm_forward(RmsNormForward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    bool const eights = in_runs_of_eight(args.width, {args.y, args.x, args.w, args.residual, args.sum});
    with_row_in_registers(args.width, eights, [&]<class H>(H, unsigned threads) {
        auto const launch = [&]<int kStages>(auto const& with) {
            auto* const kernel = forward<H::kRun, H::kRuns, kStages>;
            size_t const shared = Rows<H::kRun, H::kRuns, 2, kStages>::Ring::bytes(threads);
            allow_shared(kernel, shared);
            with(kernel, shared);
        };
        // Measured: with two tensors to read, a block for each row keeps more of memory busy than fetching ahead. The
        // few blocks that do fetch ahead would crowd on the multiprocessors that are free first if they began early.
        if (args.residual != nullptr)
            launch.template operator()<1>([&](auto* kernel, size_t shared) {
                follow("rmsnorm_forward", kernel, dim3(static_cast<unsigned>(args.tokens)), dim3(threads), shared,
                       stream, args);
            });
        else
            launch.template operator()<H::stages(2)>([&](auto* kernel, size_t shared) {
                int64_t const blocks = std::min(args.tokens, multiprocessors() * ceil_div(kForwardThreads, threads));
                kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(args);
                check_launch("rmsnorm_forward");
            });
    });
}

size_t rmsnorm_backward_scratch(int64_t tokens, int64_t width) {
    return static_cast<size_t>(most_backward_blocks(tokens) * width) * sizeof(float);
}

void rmsnorm_backward(RmsNormBackward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    bool const eights = in_runs_of_eight(args.width, {args.dx, args.dy, args.x, args.w, args.dresidual, args.scratch});
    int64_t blocks = 0;
    with_row_in_registers(args.width, eights, [&]<class H>(H, unsigned threads) {
        constexpr int kN = H::kRun, kV = H::kRuns;
        auto const launch = [&]<int kStages>(bool may_fail) {
            auto* const kernel = backward<kN, kV, kStages>;
            // Of a row. The sums over its tokens come later, into the same memory.
            size_t const bytes = std::max(Rows<kN, kV, 3, kStages>::Ring::bytes(threads),
                                          static_cast<size_t>(args.width) * sizeof(float));
            auto const fit = static_cast<unsigned>(room_for_shared(kernel) / bytes);
            if (fit == 0 && may_fail) return false;
            unsigned const side_by_side = std::clamp(kThreadsOfBackward<kN, kV> / threads, 1u, std::max(fit, 1u));
            size_t const shared = side_by_side * bytes;
            allow_shared(kernel, shared);
            blocks = std::min(most_backward_blocks(args.tokens), ceil_div(args.tokens, side_by_side));
            follow("rmsnorm_backward", kernel, dim3(static_cast<unsigned>(blocks)), dim3(side_by_side * threads),
                   shared, stream, args, static_cast<int>(threads));
            return true;
        };
        if (!launch.template operator()<H::stages(3)>(true)) launch.template operator()<H::stages(2)>(false);
    });
    add_columns({{args.dw_accumulated, args.scratch, blocks, args.width}}, stream);
}

}  // namespace perigee::kernels
