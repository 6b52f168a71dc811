#include <algorithm>

#include "kernels/common/arrivals.cuh"
#include "kernels/common/follow.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/embedding/embedding.h"

namespace perigee::kernels {

namespace {

constexpr int kForwardThreads = 128;
constexpr int kSortWarps = 32;
constexpr int kSortBits = 7;         // at least 128 blocks sort the tokens
constexpr int64_t kMostBins = 1024;  // rows of the table that a block has: a thread for each
constexpr int kList = 96;            // tokens of them that a warp notes; it looks for more of them again
constexpr int kThreads = 256;
constexpr int kUnit = 32;  // tokens that a block adds
constexpr int kAhead = 8;  // of which so many are under way at a time

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

/// A token, at the place that the order of rows, and of tokens within a row, gives it.
struct alignas(16) Entry {
    int32_t row, token;
    int32_t rank, count;  ///< which of the tokens of its row it is, and of how many

    /// The place of the row's first entry, if this one is at `place`. Counted from a unit's first entry, it is negative
    /// where the row began in an earlier unit.
    __device__ int begin(int place) const { return place - rank; }
    __device__ bool is_last() const { return rank + 1 == count; }
};

struct Scratch {
    int32_t* total;     ///< entries: tokens whose rows are in the table
    unsigned* arrived;  ///< [units, pieces]: of a row that begins in a unit and goes on in the next
    Entry* entries;     ///< [T]
    float* sums;        ///< [units, 2, D]: of the row that began in an earlier unit; of that which goes on in the next
    int64_t units, pieces;
    size_t bytes;
};

/// `columns`: of a piece, which a block has.
Scratch lay_out(void* memory, int64_t tokens, int64_t width, int64_t columns) {
    size_t used = 0;
    auto const take = [&](int64_t bytes) {
        auto* const begin = static_cast<std::byte*>(memory) + used;
        used += static_cast<size_t>(round_up(bytes, 256));
        return begin;
    };
    Scratch s{};
    s.units = ceil_div(tokens, kUnit), s.pieces = ceil_div(width, columns);
    s.total = reinterpret_cast<int32_t*>(take(4));
    s.arrived = reinterpret_cast<unsigned*>(take(s.units * s.pieces * 4));
    s.entries = reinterpret_cast<Entry*>(take(tokens * 16));
    s.sums = reinterpret_cast<float*>(take(s.units * 2 * width * 4));
    s.bytes = used;
    return s;
}

/// Of the values of all threads of a block of kSortWarps warps: the sum of those before this thread's.
__device__ int32_t sum_before(int32_t value) {
    unsigned const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto const up_to_lane = [&](int32_t x) {
#pragma unroll
        for (unsigned distance = 1; distance < 32; distance *= 2) {
            int32_t const other = __shfl_up_sync(kAllLanes, x, distance);
            if (lane >= distance) x += other;
        }
        return x;
    };
    int32_t const in_warp = up_to_lane(value), of_warp = __shfl_sync(kAllLanes, in_warp, 31);
    int32_t const warps = up_to_lane(across_warps(of_warp, 0)),
                  earlier = __shfl_sync(kAllLanes, warps, (warp + 31) % 32);
    return (warp > 0 ? earlier : 0) + in_warp - value;
}

/// The rows that a block sorts, those whose index ends in `bits` bits of the block's number, and the piece of the
/// tokens that a warp looks through for them.
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
        int32_t const piece = (tokens + 32 * kSortWarps - 1) / (32 * kSortWarps) * 32;
        begin = static_cast<int32_t>(threadIdx.x / 32) * piece;
        end = min(tokens, begin + piece);
    }
    __device__ uint32_t count() const { return (vocab + gridDim.x - 1) >> bits; }
    __device__ int32_t row(uint32_t bin) const { return static_cast<int32_t>(bin << bits | blockIdx.x); }

    /// Calls f(t, bin, whether token t is in that bin, whether it is in one of an earlier block) for 32 tokens after
    /// the other.
    template <class F>
    __device__ __forceinline__ void tokens(F const& f) const {
        constexpr int kLoads = 8;
        uint32_t const mask = (1u << bits) - 1;
        auto const lane = static_cast<int32_t>(threadIdx.x % 32);
        for (int32_t round = begin + lane; round < end + lane; round += 32 * kLoads) {
            int32_t of[kLoads];
#pragma unroll
            for (int n = 0; n < kLoads; ++n) of[n] = round + n * 32 < end ? ids[round + n * 32] : 0;
#pragma unroll
            for (int n = 0; n < kLoads; ++n) {
                uint32_t const row = static_cast<uint32_t>(of[n]) - vocab_begin;
                bool const exists = round + n * 32 < end && row < vocab;
                f(round + n * 32, row >> bits, exists && (row & mask) == blockIdx.x,
                  exists && (row & mask) < blockIdx.x);
            }
        }
    }
};

/// A warp's tokens in the rows of its block, in their order.
struct List {
    int2* of_warp;   ///< token and bin of the first kList
    int32_t length;  ///< of all

    __device__ __forceinline__ void add(int32_t t, uint32_t bin, bool found) {
        unsigned const all = __ballot_sync(kAllLanes, found);
        int32_t const place = length + __popc(all & ((1u << threadIdx.x % 32) - 1));
        if (found && place < kList) of_warp[place] = {t, static_cast<int32_t>(bin)};
        length += __popc(all);
    }
    /// Calls f(t, bin, whether there is such a token) for 32 tokens after the other.
    template <class F>
    __device__ __forceinline__ void tokens(Bins const& bins, F const& f) const {
        if (length > kList) return bins.tokens([&](int32_t t, uint32_t bin, bool found, bool) { f(t, bin, found); });
        __syncwarp();
        for (int32_t first = 0; first < length; first += 32) {
            int32_t const i = first + static_cast<int32_t>(threadIdx.x % 32);
            int2 const token = of_warp[min(i, length - 1)];
            f(token.x, static_cast<uint32_t>(token.y), i < length);
        }
    }
};

/// Sorts the tokens of some rows.
__global__ void __launch_bounds__(32 * kSortWarps) sort(EmbeddingBackward const a, Scratch const s, int bits) {
    extern __shared__ __align__(16) int32_t places[];  // [warps, bins]: tokens of a warp; then where its next one goes
    __shared__ int32_t counts[kMostBins], begins[kMostBins];
    __shared__ int2 lists[kSortWarps][kList];
    Bins const mine(a, bits);
    uint32_t const bin = threadIdx.x, bins = mine.count();
    for (uint32_t i = bin; i < kSortWarps / 4 * bins; i += blockDim.x) reinterpret_cast<int4*>(places)[i] = {};
    counts[bin] = 0;
    wait_for_previous();
    let_next_begin();
    for (int64_t i = blockIdx.x * blockDim.x + bin; i < s.units * s.pieces; i += gridDim.x * blockDim.x)
        s.arrived[i] = 0;
    __syncthreads();
    int32_t* const of_warp = places + threadIdx.x / 32 * bins;
    List list{lists[threadIdx.x / 32], 0};
    int32_t earlier = 0;
    mine.tokens([&](int32_t t, uint32_t of, bool found, bool before) {
        if (found) {
            atomicAdd(of_warp + of, 1);
            atomicAdd(counts + of, 1);
        }
        list.add(t, of, found);
        earlier += before;
    });
    int32_t const of_earlier_blocks = block_sum(earlier);  // its barriers are those that counts and places need
    int32_t const count = counts[bin], begin = of_earlier_blocks + sum_before(count);
    begins[bin] = begin;
    if (count > 1) {
        int32_t next = begin;
#pragma unroll
        for (int warp = 0; warp < kSortWarps; ++warp) {
            int32_t const of = places[warp * bins + bin];
            places[warp * bins + bin] = next;
            next += of;
        }
    }
    if (blockIdx.x == gridDim.x - 1 && bin == blockDim.x - 1) *s.total = begin + count;
    __syncthreads();
    list.tokens(mine, [&](int32_t t, uint32_t of, bool found) {
        bool const more = found && counts[of] > 1;
        unsigned const all = __ballot_sync(kAllLanes, more);
        int32_t const begin_of_row = found ? begins[of] : 0;
        int32_t at = begin_of_row;
        if (more) {
            unsigned const same = __match_any_sync(all, of), before = same & ((1u << threadIdx.x % 32) - 1);
            at = of_warp[of] + __popc(before);
            __syncwarp(all);
            if (before == 0) of_warp[of] = at + __popc(same);
        }
        if (found) s.entries[at] = {mine.row(of), t, at - begin_of_row, counts[of]};
        __syncwarp();
    });
}

/// A thread's N columns. Threads beyond the row read columns 0 on instead, and write nothing.
template <int N>
struct Columns {
    int64_t width;
    int first;
    bool exist;

    __device__ Columns(int64_t row_width, int64_t piece)
        : width(row_width), first(static_cast<int>(piece * kThreads + threadIdx.x) * N), exist(first < width) {
        if (!exist) first = 0;
    }
    template <class T>
    __device__ T* of(T* rows, int64_t row) const {
        return rows + row * width + first;
    }
};

template <int N, class T>
__device__ __forceinline__ void add_to(Run<float, N>& sum, Run<T, N> const& x) {
#pragma unroll
    for (int j = 0; j < N; ++j) sum.values[j] += widen(x.values[j]);
}

/// For a row whose entries are in several units: stores the sum of those in this unit. Their last is `e`, at `place`.
/// The block that stores last adds the sums of all units, in their order, to the table.
template <int N>
__device__ __forceinline__ void join(EmbeddingBackward const& a, Scratch const& s, Columns<N> const& columns,
                                     int64_t piece, Entry const& e, int place, Run<float, N> const& sum) {
    int const from = e.begin(place) / kUnit, to = (e.begin(place) + e.count - 1) / kUnit, unit = place / kUnit;
    auto const left = [&](int u) { return columns.of(s.sums, 2 * u + (u == from)); };
    if (columns.exist) store_run<N>(left(unit), sum);
    if (!last_to_arrive(s.arrived + from * s.pieces + piece, static_cast<unsigned>(to - from + 1)) || !columns.exist)
        return;
    float* const row = columns.of(a.dtable_accumulated, e.row);
    Run<float, N> const before = load_run<N>(row);
    Run<float, N> all = {};
#pragma unroll 8
    for (int u = from; u <= to; ++u)
#pragma unroll
        for (int j = 0; j < N; ++j) all.values[j] += __ldcg(left(u) + j);  // others wrote it just now
    add_to<N>(all, before);
    store_run<N>(row, all);
}

/// A block adds the tokens of a unit of entries, in some columns.
template <int N>
__global__ void __launch_bounds__(kThreads) add(EmbeddingBackward const a, Scratch const s) {
    __shared__ Entry entries[kUnit];
    int64_t const piece = blockIdx.x % s.pieces;
    int const first = static_cast<int>(blockIdx.x / s.pieces) * kUnit;
    Columns<N> const columns(a.width, piece);
    wait_for_previous();
    let_next_begin();
    int const count = min(kUnit, *s.total - first);
    if (count <= 0) return;
    if (threadIdx.x < count) entries[threadIdx.x] = s.entries[first + threadIdx.x];
    __syncthreads();
    Run<float, N> sum = {}, of_earlier = {};
    int end_of_earlier = -1;  // entry that ends the row that began in an earlier unit
    for (int begin = 0; begin < count; begin += kAhead) {
        Run<bf16, N> x[kAhead];
        Run<float, N> row[kAhead];
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
            int const i = min(begin + n, count - 1);
            Entry const e = entries[i];
            x[n] = load_run<N>(columns.of(a.dx, e.token));
            if (e.is_last() && e.begin(i) >= 0) row[n] = load_run<N>(columns.of(a.dtable_accumulated, e.row));
        }
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
            int const i = begin + n;
            if (i >= count) break;
            Entry const e = entries[i];
            if (e.rank == 0) sum = {};
            add_to<N>(sum, x[n]);
            if (!e.is_last()) continue;
            if (e.begin(i) >= 0) {
                add_to<N>(row[n], sum);
                if (columns.exist) store_run<N>(columns.of(a.dtable_accumulated, e.row), row[n]);
            } else {
                of_earlier = sum, end_of_earlier = i;
            }
        }
    }
    if (end_of_earlier >= 0) join<N>(a, s, columns, piece, entries[end_of_earlier], first + end_of_earlier, of_earlier);
    if (Entry const& e = entries[count - 1]; !e.is_last()) join<N>(a, s, columns, piece, e, first + count - 1, sum);
}

template <int N>
void launch_backward(EmbeddingBackward const& args, cudaStream_t stream) {
    Scratch const s = lay_out(args.scratch, args.tokens, args.width, kThreads * N);
    int64_t const bytes = kSortWarps * sizeof(int32_t);  // of a bin
    int64_t const bins = std::min(kMostBins, static_cast<int64_t>(room_for_shared(sort)) / bytes);
    int bits = kSortBits;
    while (ceil_div(args.vocab, 1 << bits) > bins) ++bits;
    auto const shared = static_cast<size_t>(ceil_div(args.vocab, 1 << bits) * bytes);
    allow_shared(sort, shared);
    follow("embedding_backward_sort", sort, dim3(1u << bits), dim3(32 * kSortWarps), shared, stream, args, s, bits);
    follow("embedding_backward", add<N>, dim3(static_cast<unsigned>(s.units * s.pieces)), dim3(kThreads), 0, stream,
           args, s);
}

}  // namespace

void embedding_forward(EmbeddingForward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    auto const blocks = static_cast<unsigned>(ceil_div(args.tokens, kForwardThreads / 32));
    if (in_runs_of_eight(args.width, {args.x, args.table}))
        follow("embedding_forward", forward<8, 4>, dim3(blocks), dim3(kForwardThreads), 0, stream, args);
    else
        follow("embedding_forward", forward<1, 8>, dim3(blocks), dim3(kForwardThreads), 0, stream, args);
}

size_t embedding_backward_scratch(int64_t tokens, int64_t width) {
    return lay_out(nullptr, tokens, width, kThreads).bytes;  // single columns make the most pieces
}

void embedding_backward(EmbeddingBackward const& args, cudaStream_t stream) {
    if (args.tokens == 0 || args.width == 0) return;
    if (in_runs_of_eight(args.width, {args.dtable_accumulated, args.dx}))
        launch_backward<4>(args, stream);
    else
        launch_backward<1>(args, stream);
}

}  // namespace perigee::kernels
