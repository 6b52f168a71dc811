#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/common/launch.h"
#include "kernels/common/vector.cuh"
#include "kernels/embedding/embedding.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;
constexpr int kAccumulateThreads = 64;  // few columns to a block: a frequent id is walked by many blocks side by side

unsigned threads_for(int64_t width, int run, int most) {
    return static_cast<unsigned>(std::min<int64_t>(most, round_up(ceil_div(width, run), 32)));
}

template <int N>
__global__ void __launch_bounds__(kThreads) forward(EmbeddingForward const a) {
    int64_t const t = blockIdx.x, row = a.ids[t] - a.vocab_begin;
    bool const mine = 0 <= row && row < a.vocab;
    for (int64_t i = threadIdx.x * N; i < a.width; i += blockDim.x * N) {
        Run<bf16, N> run{};
        if (mine) run = load_run<N>(a.table + row * a.width + i);
        store_run<N>(a.x + t * a.width + i, run);
    }
}

/// What is sorted: the row of each token, `vocab` where the row belongs to another shard; and the token.
__global__ void number(EmbeddingBackward const a, uint32_t* rows, int32_t* tokens) {
    int64_t const t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (t >= a.tokens) return;
    int64_t const row = a.ids[t] - a.vocab_begin;
    rows[t] = static_cast<uint32_t>(0 <= row && row < a.vocab ? row : a.vocab);
    tokens[t] = static_cast<int32_t>(t);
}

template <int N>
__global__ void __launch_bounds__(kAccumulateThreads)
    accumulate(EmbeddingBackward const a, uint32_t const* rows, int32_t const* tokens) {
    int64_t const first = blockIdx.x;
    uint32_t const row = rows[first];
    if (row == a.vocab || (first > 0 && rows[first - 1] == row)) return;
    int64_t const i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
    if (i >= a.width) return;
    float* const to = a.dtable_accumulated + row * a.width + i;
    float sum[N];
    load(sum, to);
    constexpr int kAhead = 8;  // tokens of an id are added one after the other, but fetched side by side
    for (int64_t begin = first; begin < a.tokens && rows[begin] == row; begin += kAhead) {
        Run<bf16, N> dx[kAhead];
        bool same[kAhead];
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
            same[s] = begin + s < a.tokens && rows[begin + s] == row;
            if (same[s]) dx[s] = load_run<N>(a.dx + int64_t{tokens[begin + s]} * a.width + i);
        }
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
            if (!same[s]) continue;
            float values[N];
            unpack(values, dx[s]);
#pragma unroll
            for (int j = 0; j < N; ++j) sum[j] += values[j];
        }
    }
    store(to, sum);
}

/// Rows and tokens, before and after the sort, and the sort's own memory.
struct Scratch {
    uint32_t *rows, *sorted_rows;
    int32_t *tokens, *sorted_tokens;
    void* sort;
    size_t sort_bytes;
};

cudaError_t sort(Scratch& s, int64_t tokens, int64_t vocab, cudaStream_t stream) {
    int const bits = std::bit_width(static_cast<uint32_t>(vocab));
    return cub::DeviceRadixSort::SortPairs(s.sort, s.sort_bytes, s.rows, s.sorted_rows, s.tokens, s.sorted_tokens,
                                           static_cast<int>(tokens), 0, bits, stream);
}

int64_t list_bytes(int64_t tokens) { return round_up(tokens * 4, 256); }

size_t sort_bytes(int64_t tokens) {
    Scratch s{};
    // The most bits that a row can have need the most memory.
    check_cuda(sort(s, tokens, INT32_MAX, nullptr), "cub::DeviceRadixSort::SortPairs");
    return s.sort_bytes;
}

}  // namespace

void embedding_forward(EmbeddingForward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    auto const blocks = static_cast<unsigned>(args.tokens);
    if (in_runs_of_eight(args.width, {args.x, args.table}))
        forward<8><<<blocks, threads_for(args.width, 8, kThreads), 0, stream>>>(args);
    else
        forward<1><<<blocks, threads_for(args.width, 1, kThreads), 0, stream>>>(args);
    check_launch("embedding_forward");
}

size_t embedding_backward_scratch(int64_t tokens) {
    return tokens == 0 ? 0 : 4 * static_cast<size_t>(list_bytes(tokens)) + sort_bytes(tokens);
}

void embedding_backward(EmbeddingBackward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    auto* const bytes = static_cast<std::byte*>(args.scratch);
    auto const list = [&](int which) { return bytes + which * list_bytes(args.tokens); };
    Scratch s{reinterpret_cast<uint32_t*>(list(0)),
              reinterpret_cast<uint32_t*>(list(1)),
              reinterpret_cast<int32_t*>(list(2)),
              reinterpret_cast<int32_t*>(list(3)),
              list(4),
              sort_bytes(args.tokens)};
    number<<<static_cast<unsigned>(ceil_div(args.tokens, kThreads)), kThreads, 0, stream>>>(args, s.rows, s.tokens);
    check_launch("embedding_backward");
    check_cuda(sort(s, args.tokens, args.vocab, stream), "cub::DeviceRadixSort::SortPairs");
    bool const eights = in_runs_of_eight(args.width, {args.dtable_accumulated, args.dx});
    unsigned const threads = threads_for(args.width, eights ? 8 : 1, kAccumulateThreads);
    dim3 const blocks(static_cast<unsigned>(args.tokens),
                      static_cast<unsigned>(ceil_div(args.width, threads * (eights ? 8 : 1))));
    if (eights)
        accumulate<8><<<blocks, threads, 0, stream>>>(args, s.sorted_rows, s.sorted_tokens);
    else
        accumulate<1><<<blocks, threads, 0, stream>>>(args, s.sorted_rows, s.sorted_tokens);
    check_launch("embedding_backward");
}

}  // namespace perigee::kernels
