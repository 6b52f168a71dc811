#include <algorithm>

#include "kernels/common/follow.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/vector.cuh"
#include "kernels/embedding/embedding.h"

namespace perigee::kernels {

namespace {

constexpr int kForwardThreads = 128;
constexpr int kThreads = 256;
constexpr int kBlocks = 6;  // of a multiprocessor, so that enough rows are under way
constexpr int kRows = 2;    // rows with one token that are added side by side
constexpr int kAhead = 4;   // tokens that are added one after the other, but fetched side by side
constexpr int kFew = 64;    // tokens that one block adds; of a row with more, each part has as many
constexpr int kGroupWarps = 32;
constexpr int kGroupBits = 7;        // at least 128 blocks group the tokens
constexpr int64_t kMostBins = 1024;  // rows of the table that a block groups

/// A warp copies a row, V runs of each lane under way at a time.
template <int N, int V>
__global__ void __launch_bounds__(kForwardThreads) forward(EmbeddingForward const a) {
    wait_for_previous();
    let_next_begin();
    int64_t const t = (int64_t{blockIdx.x} * kForwardThreads + threadIdx.x) / 32;
    if (t >= a.tokens) return;
    int64_t const row = a.ids[t] - a.vocab_begin;
    bool const mine = 0 <= row && row < a.vocab;
    for (int64_t begin = threadIdx.x % 32 * N; begin < a.width; begin += 32 * N * V) {
        Run<bf16, N> runs[V] = {};
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (int64_t const i = begin + v * 32 * N; mine && i < a.width)
                runs[v] = load_run<N>(a.table + row * a.width + i);
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (int64_t const i = begin + v * 32 * N; i < a.width) store_run<N>(a.x + t * a.width + i, runs[v]);
    }
}

/// Tokens of a row: tokens[begin, begin + count), ascending, at most kFew; or the token `begin` alone.
struct alignas(16) Item {
    int32_t to;  ///< a row of the table or, of a part, the index of its Many
    int32_t begin, count;
    int32_t part;  ///< the row of `sums` that receives the sum; -1: it is added to the table
};
/// A row with more tokens: its sum is that of `parts` rows of `sums` from `first` on.
struct alignas(16) Many {
    int32_t row, first, parts;
    int32_t done;  ///< blocks that have left their part
};
/// How much of everything was handed out so far.
struct Handed {
    int32_t tokens, some, ones, parts, many;
    uint32_t work;
};

struct Scratch {
    Handed* handed;   ///< zero at first
    int32_t* tokens;  ///< [T] grouped by row
    Item* items;      ///< [T] from the front, those with several tokens; from the back, those with one
    Many* many;       ///< [most_many]
    float* sums;      ///< [most_parts, D]
    size_t bytes;
};

int64_t most_many(int64_t tokens) { return tokens / (kFew + 1); }
/// ceil(n / kFew) for a row of n > kFew.
int64_t most_parts(int64_t tokens) { return tokens / kFew + most_many(tokens); }

Scratch lay_out(void* memory, int64_t tokens, int64_t width) {
    size_t used = 0;
    auto const take = [&](int64_t bytes) {
        auto* const begin = static_cast<std::byte*>(memory) + used;
        used += static_cast<size_t>(round_up(bytes, 256));
        return begin;
    };
    Scratch s{};
    s.handed = reinterpret_cast<Handed*>(take(sizeof(Handed)));
    s.tokens = reinterpret_cast<int32_t*>(take(tokens * 4));
    s.items = reinterpret_cast<Item*>(take(tokens * 16));
    s.many = reinterpret_cast<Many*>(take(most_many(tokens) * 16));
    s.sums = reinterpret_cast<float*>(take(most_parts(tokens) * width * 4));
    s.bytes = used;
    return s;
}

/// Of the values of all threads of a block: the sum of those before this thread's, and of all.
struct Sum {
    uint64_t before, all;
};
__device__ Sum sum_over_threads(uint64_t value) {
    __shared__ uint64_t warps[kGroupWarps];
    unsigned const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto const up_to_lane = [&](uint64_t x) {
#pragma unroll
        for (unsigned distance = 1; distance < 32; distance *= 2) {
            uint64_t const other = __shfl_up_sync(~0u, x, distance);
            if (lane >= distance) x += other;
        }
        return x;
    };
    uint64_t const in_warp = up_to_lane(value);
    __syncthreads();  // the values of an earlier call have been read
    if (lane == 31) warps[warp] = in_warp;
    __syncthreads();
    uint64_t const of_warps = up_to_lane(warps[lane]);
    uint64_t const earlier = __shfl_sync(~0u, of_warps, (warp + 31) % 32);
    return {(warp > 0 ? earlier : 0) + in_warp - value, __shfl_sync(~0u, of_warps, 31)};
}

/// The rows that this block groups, those whose index ends in `bits` bits of the block's number, and the piece of the
/// tokens that this warp looks through for them.
struct Bins {
    uint32_t vocab_begin, vocab;
    int bits;
    int32_t const* ids;
    int32_t begin, end;  ///< of the tokens

    __device__ Bins(EmbeddingBackward const& a, int row_bits)
        : vocab_begin(static_cast<uint32_t>(a.vocab_begin)),
          vocab(static_cast<uint32_t>(a.vocab)),
          bits(row_bits),
          ids(a.ids) {
        auto const tokens = static_cast<int32_t>(a.tokens);
        int32_t const piece = (tokens + 32 * kGroupWarps - 1) / (32 * kGroupWarps) * 32;
        begin = static_cast<int32_t>(threadIdx.x / 32) * piece;
        end = min(tokens, begin + piece);
    }
    __device__ int32_t row(uint32_t bin) const { return static_cast<int32_t>(bin << bits | blockIdx.x); }

    /// Calls f(t, bin, whether token t is in that bin) for 32 tokens after the other.
    template <class F>
    __device__ __forceinline__ void tokens(F const& f) const {
        constexpr int kLoads = 8;
        uint32_t const mask = (1u << bits) - 1;
        for (int32_t round = begin + static_cast<int32_t>(threadIdx.x % 32);
             round < end + static_cast<int32_t>(threadIdx.x % 32); round += 32 * kLoads) {
            int32_t of[kLoads];
#pragma unroll
            for (int n = 0; n < kLoads; ++n) of[n] = round + n * 32 < end ? ids[round + n * 32] : 0;
#pragma unroll
            for (int n = 0; n < kLoads; ++n) {
                uint32_t const found = static_cast<uint32_t>(of[n]) - vocab_begin;
                f(round + n * 32, found >> bits, round + n * 32 < end && found < vocab && (found & mask) == blockIdx.x);
            }
        }
    }
};

/// Of a block's rows: `rows` counts the tokens, and by 2^32 the rows with few and by 2^48 those with one; `many` the
/// parts, and by 2^32 the rows that have them.
__device__ int32_t low(uint64_t sums) { return static_cast<int32_t>(sums); }
__device__ int32_t middle(uint64_t sums) { return static_cast<int32_t>(sums >> 32 & 0xffff); }
__device__ int32_t high(uint64_t sums) { return static_cast<int32_t>(sums >> 48); }

/// Where what this block lists begins.
__device__ Handed hand_out(Handed* from, uint64_t rows, uint64_t many) {
    __shared__ Handed handed;
    if (threadIdx.x == 0) {
        handed.tokens = atomicAdd(&from->tokens, low(rows));
        handed.some = atomicAdd(&from->some, middle(rows) + low(many));
        handed.ones = atomicAdd(&from->ones, high(rows));
        handed.parts = many > 0 ? atomicAdd(&from->parts, low(many)) : 0;
        handed.many = many > 0 ? atomicAdd(&from->many, middle(many)) : 0;
    }
    __syncthreads();
    return handed;
}

/// Every token of this warp to its place: in the item of a row that has no other, else behind those of its row before
/// it.
__device__ void place(Bins const& mine, int32_t* of_warp, int32_t const* alone, Scratch const& s) {
    mine.tokens([&](int32_t t, uint32_t bin, bool found) {
        int32_t const item = found ? alone[bin] : -1;
        if (item >= 0) s.items[item] = {mine.row(bin), t, 1, -1};
        bool const counted = found && item < 0;
        unsigned const all = __ballot_sync(~0u, counted);
        if (all == 0) return;
        if (counted) {
            unsigned const same = __match_any_sync(all, bin), before = same & ((1u << threadIdx.x % 32) - 1);
            int32_t const next = of_warp[bin];
            __syncwarp(all);
            s.tokens[next + __popc(before)] = t;
            if (before == 0) of_warp[bin] = next + __popc(same);
        }
        __syncwarp();
    });
}

/// Groups the tokens of some rows, and lists what is to be added.
__global__ void __launch_bounds__(32 * kGroupWarps) group(EmbeddingBackward const a, Scratch const s, int bits) {
    extern __shared__ int32_t counts[];   // [warps, bins]; then where a warp's next token of a row goes
    __shared__ int32_t alone[kMostBins];  // the item of a row with one token, otherwise -1
    let_next_begin();
    Bins const mine(a, bits);
    uint32_t const bin = threadIdx.x, bins = (mine.vocab + gridDim.x - 1) >> bits;
    for (uint32_t i = bin; i < kGroupWarps * bins; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    int32_t* const of_warp = counts + threadIdx.x / 32 * bins;
    mine.tokens([&](int32_t, uint32_t of, bool found) {
        if (found) atomicAdd(of_warp + of, 1);
    });
    __syncthreads();
    int32_t count = 0;
    if (bin < bins) {
#pragma unroll
        for (int warp = 0; warp < kGroupWarps; ++warp) count += counts[warp * bins + bin];
    }
    int32_t const parts = count > kFew ? (count + kFew - 1) / kFew : 0;
    uint64_t const few = count > 1 && parts == 0 ? 1 : 0, one = count == 1 ? 1 : 0;
    Sum const rows = sum_over_threads(static_cast<uint64_t>(count) | few << 32 | one << 48);
    Sum many{};
    if (__syncthreads_or(parts > 0)) many = sum_over_threads(static_cast<uint64_t>(parts) | uint64_t{parts > 0} << 32);
    Handed const handed = hand_out(s.handed, rows.all, many.all);
    int32_t const begin = handed.tokens + low(rows.before);
    if (bin < bins) {
        int32_t next = begin;
#pragma unroll
        for (int warp = 0; warp < kGroupWarps; ++warp) {
            int32_t const of = counts[warp * bins + bin];
            counts[warp * bins + bin] = next;
            next += of;
        }
    }
    int32_t const row = mine.row(bin);
    Item* const front = s.items + handed.some + middle(rows.before) + low(many.before);
    if (few) *front = {row, begin, count, -1};
    alone[bin] = one ? static_cast<int32_t>(a.tokens) - 1 - handed.ones - high(rows.before) : -1;
    if (parts > 0) {
        int32_t const first = handed.parts + low(many.before), index = handed.many + middle(many.before);
        s.many[index] = {row, first, parts, 0};
        for (int32_t part = 0; part < parts; ++part)
            front[part] = {index, begin + part * kFew, min(kFew, count - part * kFew), first + part};
    }
    __syncthreads();
    place(mine, of_warp, alone, s);
}

/// A thread's N columns of a row, from `first` on. Threads beyond the row read columns 0 on instead, and write nothing.
struct Columns {
    int first;
    bool exist;
};

template <int N>
__device__ __forceinline__ void add_to(Run<float, N>& sum, Run<bf16, N> const& x) {
#pragma unroll
    for (int j = 0; j < N; ++j) sum.values[j] += widen(x.values[j]);
}

/// Adds rows with one token each to the table: items[0], items[-1], ..., `count` and at most kRows.
template <int N>
__device__ void add_ones(EmbeddingBackward const& a, Columns columns, Item const* items, int count) {
    int32_t rows[kRows], tokens[kRows];
    Run<float, N> sums[kRows];
    Run<bf16, N> x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {  // nothing here waits for a branch: what exceeds the count is read once more
        Item const item = items[-min(r, count - 1)];
        rows[r] = item.to;
        tokens[r] = item.begin;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        sums[r] = load_run<N>(a.dtable_accumulated + rows[r] * a.width + columns.first);
        x[r] = load_run<N>(a.dx + tokens[r] * a.width + columns.first);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        add_to<N>(sums[r], x[r]);
        if (r < count && columns.exist) store_run<N>(a.dtable_accumulated + rows[r] * a.width + columns.first, sums[r]);
    }
}

/// Adds the tokens of an item in their order.
template <int N>
__device__ void add_some(EmbeddingBackward const& a, Scratch const& s, Columns columns, Item const item) {
    static_assert(kFew == 64 && 32 % kAhead == 0);
    float* const to =
        (item.part < 0 ? a.dtable_accumulated + item.to * a.width : s.sums + item.part * a.width) + columns.first;
    int const lane = static_cast<int>(threadIdx.x % 32), last = item.begin + item.count - 1;
    int32_t tokens = s.tokens[min(item.begin + lane, last)];
    int32_t const later = s.tokens[min(item.begin + 32 + lane, last)];
    Run<float, N> sum = {};
    if (item.part < 0) sum = load_run<N>(to);
    for (int begin = 0; begin < item.count; begin += kAhead) {
        if (begin == 32) tokens = later;
        Run<bf16, N> x[kAhead];
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
            int64_t const t = __shfl_sync(~0u, tokens, (begin + n) % 32);
            x[n] = load_run<N>(a.dx + t * a.width + columns.first);
        }
#pragma unroll
        for (int n = 0; n < kAhead; ++n)
            if (begin + n < item.count) add_to<N>(sum, x[n]);
    }
    if (columns.exist) store_run<N>(to, sum);
}

/// The block that leaves the last part of a row adds up all of them, in their order, to the table.
template <int N>
__device__ void join(EmbeddingBackward const& a, Scratch const& s, Many* many, int pieces) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&many->done, 1) + 1 == many->parts * pieces;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int64_t i = threadIdx.x * N; i < a.width; i += kThreads * N) {
        float* const to = a.dtable_accumulated + many->row * a.width + i;
        float const* const from = s.sums + many->first * a.width + i;
        Run<float, N> sum = load_run<N>(to);
#pragma unroll 4
        for (int part = 0; part < many->parts; ++part)
#pragma unroll
            for (int j = 0; j < N; ++j) sum.values[j] += __ldcg(from + part * a.width + j);  // others wrote it just now
        store_run<N>(to, sum);
    }
}

/// Blocks take the next piece of work as they are done with one: the longest come first.
template <int N>
__global__ void __launch_bounds__(kThreads, kBlocks) add(EmbeddingBackward const a, Scratch const s) {
    __shared__ uint32_t handed_out[2];
    auto const pieces = static_cast<uint32_t>((a.width + kThreads * N - 1) / (kThreads * N));
    wait_for_previous();
    let_next_begin();
    auto const some = static_cast<uint32_t>(s.handed->some), ones = static_cast<uint32_t>(s.handed->ones);
    uint32_t const all = (some + (ones + kRows - 1) / kRows) * pieces;
    uint32_t work = blockIdx.x;
    for (int turn = 0; work < all; turn ^= 1) {
        uint32_t next = 0;
        if (threadIdx.x == 0) next = gridDim.x + atomicAdd(&s.handed->work, 1);
        uint32_t const index = work / pieces;
        auto const i = static_cast<int>((work % pieces * kThreads + threadIdx.x) * N);
        Columns const columns = i < a.width ? Columns{i, true} : Columns{0, false};
        if (index < some) {
            Item const item = s.items[index];
            add_some<N>(a, s, columns, item);
            if (item.part >= 0) join<N>(a, s, s.many + item.to, static_cast<int>(pieces));
        } else {
            uint32_t const first = (index - some) * kRows;
            add_ones<N>(a, columns, s.items + (a.tokens - 1 - first), static_cast<int>(ones - first));
        }
        if (threadIdx.x == 0) handed_out[turn] = next;
        __syncthreads();
        work = handed_out[turn];
    }
}

template <int N>
void add_up(EmbeddingBackward const& args, Scratch const& s, cudaStream_t stream) {
    auto const blocks = static_cast<unsigned>(resident_blocks(add<N>, kThreads, 0));
    follow(add<N>, dim3(blocks), dim3(kThreads), 0, stream, args, s);
}

}  // namespace

void embedding_forward(EmbeddingForward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    auto const blocks = static_cast<unsigned>(ceil_div(args.tokens, kForwardThreads / 32));
    if (in_runs_of_eight(args.width, {args.x, args.table}))
        follow(forward<8, 4>, dim3(blocks), dim3(kForwardThreads), 0, stream, args);
    else
        follow(forward<1, 8>, dim3(blocks), dim3(kForwardThreads), 0, stream, args);
    check_launch("embedding_forward");
}

size_t embedding_backward_scratch(int64_t tokens, int64_t width) { return lay_out(nullptr, tokens, width).bytes; }

void embedding_backward(EmbeddingBackward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    Scratch const s = lay_out(args.scratch, args.tokens, args.width);
    check_cuda(cudaMemsetAsync(s.handed, 0, sizeof(Handed), stream), "cudaMemsetAsync");
    int bits = kGroupBits;
    while (ceil_div(args.vocab, 1 << bits) > kMostBins) ++bits;
    size_t const shared = static_cast<size_t>(ceil_div(args.vocab, 1 << bits)) * kGroupWarps * sizeof(int32_t);
    allow_shared(group, shared);
    group<<<1u << bits, 32 * kGroupWarps, shared, stream>>>(args, s, bits);
    check_launch("embedding_backward");
    if (in_runs_of_eight(args.width, {args.dtable_accumulated, args.dx}))
        add_up<4>(args, s, stream);
    else
        add_up<1>(args, s, stream);
}

}  // namespace perigee::kernels
