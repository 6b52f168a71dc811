#include <algorithm>
#include <climits>

#include "kernels/common/launch.h"
#include "kernels/common/vector.cuh"
#include "kernels/embedding/embedding.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;
constexpr int kFew = 64;    // tokens of an id that one block adds; of more, each part has about as many
constexpr int kAhead = 4;   // rows that are added one after the other, but fetched side by side
constexpr int kBlocks = 4;  // of a multiprocessor, so that enough rows are under way
constexpr int kPieces = 8;  // ids that a thread looks at in one round

unsigned threads_for(int64_t width, int run) {
    return static_cast<unsigned>(std::min<int64_t>(kThreads, round_up(ceil_div(width, run), 32)));
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

/// A row of the table with one token.
struct alignas(8) One {
    int32_t row, token;
};
/// A row with few tokens: they are tokens[begin, begin + count), in any order.
struct alignas(16) Few {
    int32_t row, begin, count, unused;
};
/// Part `part` of `parts` of a row with many tokens: those in that part of all tokens.
struct alignas(16) Part {
    int32_t row, part, parts, unused;
};

/// How many tokens, rows and parts were handed out so far; one of each is read and added to at a time.
struct Handed {
    unsigned long long ones;  ///< rows
    unsigned long long few;   ///< rows * 2^32 + their tokens
    unsigned long long many;  ///< rows * 2^32 + their parts
};

struct Scratch {
    int32_t* counts;  ///< [V] tokens of a row; then where the tokens of a row with few begin, otherwise -1
    Handed* handed;   ///< behind the counts: both start at zero
    int32_t* ranks;   ///< [T] which of its row's tokens a token is, in any order; -1 where another shard has the row
    int32_t* tokens;  ///< [T] grouped by row
    One* ones;        ///< [T]
    Few* few;         ///< [T / 2]
    Part* parts;      ///< [most_parts]
    Part* many;       ///< [most_many] the row, its first part and its parts
    float* sums;      ///< [most_parts, D]
    size_t bytes, cleared_bytes;
};

int64_t most_many(int64_t tokens) { return tokens / (kFew + 1); }
/// ceil(n / kFew) for a row of n > kFew.
int64_t most_parts(int64_t tokens) { return tokens / kFew + most_many(tokens); }

Scratch lay_out(void* memory, int64_t tokens, int64_t vocab, int64_t width) {
    size_t used = 0;
    auto const take = [&](int64_t bytes) {
        auto* const begin = static_cast<std::byte*>(memory) + used;
        used += static_cast<size_t>(round_up(bytes, 256));
        return begin;
    };
    Scratch s{};
    s.counts = reinterpret_cast<int32_t*>(take(vocab * 4));
    s.handed = reinterpret_cast<Handed*>(take(sizeof(Handed)));
    s.cleared_bytes = used;
    s.ranks = reinterpret_cast<int32_t*>(take(tokens * 4));
    s.tokens = reinterpret_cast<int32_t*>(take(tokens * 4));
    s.ones = reinterpret_cast<One*>(take(tokens * 8));
    s.few = reinterpret_cast<Few*>(take(tokens / 2 * 16));
    s.parts = reinterpret_cast<Part*>(take(most_parts(tokens) * 16));
    s.many = reinterpret_cast<Part*>(take(most_many(tokens) * 16));
    s.sums = reinterpret_cast<float*>(take(most_parts(tokens) * width * 4));
    s.bytes = used;
    return s;
}

/// Counts the tokens of each row. Neighbours with the same id count as one.
__global__ void __launch_bounds__(kThreads) count(EmbeddingBackward const a, Scratch const s) {
    int64_t const t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    int64_t const row = t < a.tokens ? a.ids[t] - a.vocab_begin : -1;
    bool const mine = 0 <= row && row < a.vocab;
    unsigned const same = __match_any_sync(~0u, mine ? static_cast<int32_t>(row) : -1);
    int const lane = static_cast<int>(threadIdx.x % 32), first = __ffs(static_cast<int>(same)) - 1;
    int before = 0;
    if (mine && lane == first) before = atomicAdd(s.counts + row, __popc(same));
    before = __shfl_sync(~0u, before, first);
    if (t < a.tokens) s.ranks[t] = mine ? before + __popc(same & ((1u << lane) - 1)) : -1;
}

/// Adds over the lanes of a warp that come before this one, and reserves the sum of all at `from`.
__device__ unsigned long long hand_out(unsigned long long* from, unsigned long long wanted) {
    int const lane = static_cast<int>(threadIdx.x % 32);
    unsigned long long sum = wanted;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        unsigned long long const other = __shfl_up_sync(~0u, sum, static_cast<unsigned>(distance));
        if (lane >= distance) sum += other;
    }
    unsigned long long begin = 0;
    if (lane == 31 && sum > 0) begin = atomicAdd(from, sum);
    return __shfl_sync(~0u, begin, 31) + sum - wanted;
}

/// The first token of each row gives the row its place in the lists.
__global__ void __launch_bounds__(kThreads) list(EmbeddingBackward const a, Scratch const s) {
    constexpr unsigned long long kRow = 1ull << 32;
    int64_t const t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    bool const leads = t < a.tokens && s.ranks[t] == 0;
    auto const row = static_cast<int32_t>(leads ? a.ids[t] - a.vocab_begin : 0);
    int32_t const tokens = leads ? s.counts[row] : 0, parts = tokens > kFew ? (tokens + kFew - 1) / kFew : 0;
    auto const one = hand_out(&s.handed->ones, tokens == 1 ? 1 : 0);
    if (tokens == 1) s.ones[one] = {row, static_cast<int32_t>(t)};
    bool const few = tokens > 1 && parts == 0;
    auto const place = hand_out(&s.handed->few, few ? kRow + static_cast<unsigned>(tokens) : 0);
    auto const begin = static_cast<int32_t>(place % kRow);
    if (few) s.few[place / kRow] = {row, begin, tokens, 0};
    if (leads) s.counts[row] = few ? begin : -1;
    if (__ballot_sync(~0u, parts > 0) == 0) return;
    auto const many = hand_out(&s.handed->many, parts > 0 ? kRow + static_cast<unsigned>(parts) : 0);
    if (parts == 0) return;
    auto const first = static_cast<int32_t>(many % kRow);
    s.many[many / kRow] = {row, first, parts, 0};
    for (int32_t part = 0; part < parts; ++part) s.parts[first + part] = {row, part, parts, 0};
}

__global__ void __launch_bounds__(kThreads) group(EmbeddingBackward const a, Scratch const s) {
    int64_t const t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (t >= a.tokens || s.ranks[t] < 0) return;
    int32_t const begin = s.counts[a.ids[t] - a.vocab_begin];
    if (begin >= 0) s.tokens[begin + s.ranks[t]] = static_cast<int32_t>(t);
}

/// sum += rows tokens[0, count) of dx, one after the other; of their columns, those from i on.
template <int N, class Token>
__device__ __forceinline__ void add_rows(float (&sum)[N], EmbeddingBackward const& a, int64_t i, int count,
                                         Token const& token) {
    for (int begin = 0; begin < count; begin += kAhead) {
        Run<bf16, N> dx[kAhead];
#pragma unroll
        for (int n = 0; n < kAhead; ++n)
            if (begin + n < count) {
                int32_t const t = token(begin + n);
                if (i < a.width) dx[n] = load_run<N>(a.dx + int64_t{t} * a.width + i);
            }
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
            if (begin + n >= count) break;
            float values[N];
            unpack(values, dx[n]);
#pragma unroll
            for (int j = 0; j < N; ++j) sum[j] += values[j];
        }
    }
}

/// The tokens of a row with few, added in their order to the table.
template <int N>
__device__ void add_few(EmbeddingBackward const& a, Scratch const& s, Few const few, int64_t i) {
    float* const to = a.dtable_accumulated + few.row * a.width + i;
    float sum[N];
    if (i < a.width) load(sum, to);
    // Every warp finds the smallest of those that are left.
    static_assert(kFew == 64);
    int const lane = static_cast<int>(threadIdx.x % 32);
    int32_t low = lane < few.count ? s.tokens[few.begin + lane] : INT_MAX;
    int32_t high = lane + 32 < few.count ? s.tokens[few.begin + lane + 32] : INT_MAX;
    add_rows<N>(sum, a, i, few.count, [&](int) {
        int32_t const next = __reduce_min_sync(~0u, min(low, high));
        if (low == next) low = INT_MAX;
        if (high == next) high = INT_MAX;
        return next;
    });
    if (i < a.width) store(to, sum);
}

/// What lies below a thread's own `count` in the threads before it, and the sum of all.
__device__ int2 before_and_all(int count, int* warps) {
    int const lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    int sum = count;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        int const other = __shfl_up_sync(~0u, sum, static_cast<unsigned>(distance));
        if (lane >= distance) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int before = sum - count, all = 0;
    for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) {
        if (w < warp) before += warps[w];
        all += warps[w];
    }
    __syncthreads();
    return {before, all};
}

/// The sum over one part of all tokens, which it looks through for the row.
template <int N>
__device__ void add_part(EmbeddingBackward const& a, Part const part, float* to, int64_t i) {
    __shared__ int32_t found[kThreads * kPieces];
    __shared__ int warps[kThreads / 32];
    int64_t const length = (a.tokens + part.parts - 1) / part.parts;
    int64_t const end = min(a.tokens, (part.part + 1) * length);
    int64_t const id = part.row + a.vocab_begin;
    float sum[N] = {};
    for (int64_t round = part.part * length; round < end; round += blockDim.x * kPieces) {
        int64_t const begin = round + threadIdx.x * kPieces;
        unsigned matches = 0;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
            if (begin + piece < end && a.ids[begin + piece] == id) matches |= 1u << piece;
        auto const [before, all] = before_and_all(__popc(matches), warps);
        for (int place = before; matches != 0; matches &= matches - 1)
            found[place++] = static_cast<int32_t>(begin + __ffs(static_cast<int>(matches)) - 1);
        __syncthreads();
        add_rows<N>(sum, a, i, all, [&](int n) { return found[n]; });
        __syncthreads();
    }
    if (i < a.width) store(to, sum);
}

template <int N>
__global__ void __launch_bounds__(kThreads, kBlocks) add_some(EmbeddingBackward const a, Scratch const s) {
    int64_t const i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
    auto const parts = static_cast<uint32_t>(s.handed->many), few = static_cast<uint32_t>(s.handed->few >> 32);
    for (uint32_t index = blockIdx.x; index < parts + few; index += gridDim.x)  // the longest first
        if (index < parts)
            add_part<N>(a, s.parts[index], s.sums + int64_t{index} * a.width + i, i);
        else
            add_few<N>(a, s, s.few[index - parts], i);
}

template <int N>
__global__ void __launch_bounds__(kThreads) add_ones(EmbeddingBackward const a, Scratch const s) {
    int64_t const i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
    if (i >= a.width) return;
    auto const ones = static_cast<uint32_t>(s.handed->ones);
    constexpr uint32_t kRows = 2;  // fetched side by side
    for (uint32_t index = blockIdx.x; index < ones; index += kRows * gridDim.x) {
        One one[kRows];
        Run<float, N> row[kRows];
        Run<bf16, N> dx[kRows];
#pragma unroll
        for (uint32_t r = 0; r < kRows; ++r)
            if (index + r * gridDim.x < ones) one[r] = s.ones[index + r * gridDim.x];
#pragma unroll
        for (uint32_t r = 0; r < kRows; ++r)
            if (index + r * gridDim.x < ones) {
                row[r] = load_run<N>(a.dtable_accumulated + one[r].row * a.width + i);
                dx[r] = load_run<N>(a.dx + one[r].token * a.width + i);
            }
#pragma unroll
        for (uint32_t r = 0; r < kRows; ++r)
            if (index + r * gridDim.x < ones) {
#pragma unroll
                for (int j = 0; j < N; ++j) row[r].values[j] += widen(dx[r].values[j]);
                store_run<N>(a.dtable_accumulated + one[r].row * a.width + i, row[r]);
            }
    }
}

/// The sums of a row's parts, added in order to the table.
template <int N>
__global__ void __launch_bounds__(kThreads) join(EmbeddingBackward const a, Scratch const s) {
    int64_t const i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
    if (i >= a.width) return;
    auto const many = static_cast<uint32_t>(s.handed->many >> 32);
    for (uint32_t index = blockIdx.x; index < many; index += gridDim.x) {
        auto const [row, first, parts, unused] = s.many[index];
        float const* from = s.sums + int64_t{first} * a.width + i;
        float* const to = a.dtable_accumulated + row * a.width + i;
        float sum[N];
        load(sum, to);
#pragma unroll 4
        for (int part = 0; part < parts; ++part, from += a.width) {
            float values[N];
            load(values, from);
#pragma unroll
            for (int j = 0; j < N; ++j) sum[j] += values[j];
        }
        store(to, sum);
    }
}

template <int N>
void add_up(EmbeddingBackward const& args, Scratch const& s, cudaStream_t stream) {
    unsigned const threads = threads_for(args.width, N);
    auto const columns = static_cast<unsigned>(ceil_div(args.width, threads * N));
    auto const launch = [&](auto* kernel, int64_t most) {
        int64_t const blocks = std::min(most, ceil_div(resident_blocks(kernel, threads, 0), columns));
        if (blocks > 0) kernel<<<{static_cast<unsigned>(blocks), columns}, threads, 0, stream>>>(args, s);
    };
    launch(add_some<N>, args.tokens / 2);
    launch(add_ones<N>, args.tokens);
    launch(join<N>, most_many(args.tokens));
    check_launch("embedding_backward");
}

}  // namespace

void embedding_forward(EmbeddingForward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    auto const blocks = static_cast<unsigned>(args.tokens);
    if (in_runs_of_eight(args.width, {args.x, args.table}))
        forward<8><<<blocks, threads_for(args.width, 8), 0, stream>>>(args);
    else
        forward<1><<<blocks, threads_for(args.width, 1), 0, stream>>>(args);
    check_launch("embedding_forward");
}

size_t embedding_backward_scratch(int64_t tokens, int64_t vocab, int64_t width) {
    return lay_out(nullptr, tokens, vocab, width).bytes;
}

void embedding_backward(EmbeddingBackward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    Scratch const s = lay_out(args.scratch, args.tokens, args.vocab, args.width);
    check_cuda(cudaMemsetAsync(s.counts, 0, s.cleared_bytes, stream), "cudaMemsetAsync");
    auto const blocks = static_cast<unsigned>(ceil_div(args.tokens, kThreads));
    count<<<blocks, kThreads, 0, stream>>>(args, s);
    list<<<blocks, kThreads, 0, stream>>>(args, s);
    group<<<blocks, kThreads, 0, stream>>>(args, s);
    check_launch("embedding_backward");
    if (in_runs_of_eight(args.width, {args.dtable_accumulated, args.dx}))
        add_up<8>(args, s, stream);
    else
        add_up<1>(args, s, stream);
}

}  // namespace perigee::kernels
