// The choice turned around: for each (key/value head, block) the rows that chose it. Counting, running sums, and a fill
// in which every warp knows where its part of a list begins, so that lists come out sorted whatever the timing.
#include <algorithm>

#include "kernels/moba/cuda/block_scan.cuh"
#include "kernels/moba/cuda/launch.cuh"
#include "kernels/moba/cuda/stages.h"

namespace perigee::moba {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRangeBlocks = 1024;  // blocks whose counters a thread block holds, and
constexpr int kSpare = 32;          // counters behind them, of no block
constexpr int kBatch = 8;           // slots of a row that are in registers at a time

struct ListArgs {
    int32_t const* chosen;
    Block const* blocks;
    int32_t const* block_of;
    int32_t* places;
    int32_t* totals;
    int32_t* list_begin;
    uint32_t* list;
    int32_t* tiles;
    int64_t list_stride;
    int32_t queries, query_begin, heads, kv_heads, slots, capacity, chunks, chunk_queries;
    int32_t head, chunk, end_chunk, row_tile;  ///< of a wave
    __device__ int32_t group() const { return heads / kv_heads; }
};

// Counters in shared memory, by address: from pointers the compiler works the window out anew every time.
__device__ __forceinline__ int32_t load_counter(uint32_t at) {
    int32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
__device__ __forceinline__ void store_counter(uint32_t at, int32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ __forceinline__ void count_one(uint32_t at) {
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(at) : "memory");
}
__device__ __forceinline__ void mark(uint32_t at, uint32_t bits) {
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(at), "r"(bits) : "memory");
}
/// An entry of a list, where `there`.
__device__ __forceinline__ void store_entry(uint32_t* to, bool there, uint32_t entry) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.b32 [%0], %1;\n}" ::"l"(to), "r"(entry),
                 "r"(int{there})
                 : "memory");
}

/// What a thread block counts or fills: rows [begin, end) of a key/value head, those of one chunk of queries, as far as
/// they chose blocks [low, high).
struct Part {
    int32_t g, chunk, begin, end, low, high;
    int32_t first;  ///< of the one document of all rows, or -1

    /// Bytes from the counters of the blocks to the lane's spare one behind them.
    __device__ uint32_t spare() const { return static_cast<uint32_t>(high - low) * 4 + threadIdx.x % 32 * 4; }
};
__device__ Part part_of(ListArgs const& a) {
    Part p;
    p.g = static_cast<int32_t>(blockIdx.x);
    p.chunk = static_cast<int32_t>(blockIdx.y);
    int32_t const begin = p.chunk * a.chunk_queries, end = min(begin + a.chunk_queries, a.queries);
    p.begin = begin * a.group(), p.end = end * a.group();
    int32_t const range = static_cast<int32_t>(blockIdx.z) * kRangeBlocks, last = a.block_of[a.query_begin + end - 1];
    p.first = a.blocks[a.block_of[a.query_begin + begin]].first;
    p.low = max(p.first, range);
    p.high = min(last, range + kRangeBlocks);
    if (a.blocks[last].first != p.first) p.first = -1;
    return p;
}

/// A row of a part and a batch of its choice, fetched ahead of their use.
struct ListedRow {
    int32_t const* choice;
    int32_t own;  ///< block; -1 where there is no such row
    int32_t batch[kBatch];

    __device__ __forceinline__ ListedRow(ListArgs const& a, Part const& p, int32_t row) {
        bool const there = row < p.end;
        int32_t const at = there ? row : p.begin, query = at / a.group();
        choice = a.chosen + (at + (int64_t{query} * (a.kv_heads - 1) + p.g) * a.group()) * a.slots;
        own = there ? a.block_of[a.query_begin + query] : -1;
        fetch(0, a.slots);
    }
    __device__ __forceinline__ void fetch(int from, int slots) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) batch[i] = from + i < slots ? choice[from + i] : -1;
    }

    /// Calls f(from, bytes, there) for the slots from, from + 1, ... of each batch. `there`: the slot's block counts,
    /// as it is in the row's past and in the part's range. `bytes`: from the range's counters to the block's, or to a
    /// spare one behind them: without branches the slots go on side by side. kFew: one batch holds all slots.
    template <bool kFew, class F>
    __device__ __forceinline__ void for_batches(ListArgs const& a, Part const& p, F f) {
        int32_t const first = p.first >= 0 || own < 0 ? p.first : a.blocks[own].first;
        int32_t const low = max(p.low - first, 0), shift = first - p.low;
        auto const count = static_cast<uint32_t>(own < 0 ? 0 : max(min(own, p.high) - first - low, 0));
        for (int from = 0; from < (kFew ? 1 : a.slots); from += kBatch) {
            if (!kFew) fetch(from, a.slots);
            uint32_t bytes[kBatch];
            bool there[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                there[i] = static_cast<uint32_t>(batch[i] - low) < count;
                bytes[i] = there[i] ? static_cast<uint32_t>(batch[i] + shift) * 4 : p.spare();
            }
            f(from, bytes, there);
        }
    }
    template <bool kFew>
    __device__ __forceinline__ void count(ListArgs const& a, Part const& p, uint32_t counters) {
        for_batches<kFew>(a, p, [&](int, uint32_t const(&bytes)[kBatch], bool const(&)[kBatch]) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) count_one(counters + bytes[i]);
        });
    }
};

/// Calls f(row, its number) for the rows begin, begin + stride, ... of a thread. Whole warps stay together: their rows
/// may lie beyond `end`, and then have no blocks. The next row is on its way meanwhile.
template <class F>
__device__ __forceinline__ void for_rows(ListArgs const& a, Part const& p, int32_t begin, int32_t end, int32_t stride,
                                         F f) {
    int32_t const lane = static_cast<int32_t>(threadIdx.x) % 32;
    auto const row_at = [&](int32_t at) { return ListedRow(a, p, at < end ? at : p.end); };
    ListedRow coming = row_at(begin);
    for (int32_t at = begin; at - lane < end; at += stride) {
        ListedRow row = coming;
        coming = row_at(at + stride);
        f(row, at);
    }
}

template <bool kFew>
__global__ void __launch_bounds__(kThreads) count_entries(ListArgs const a) {
    extern __shared__ int32_t counts[];
    Part const p = part_of(a);
    int const thread = static_cast<int>(threadIdx.x);
    for (int b = thread; b < p.high - p.low; b += kThreads) counts[b] = 0;
    __syncthreads();
    auto const counter = static_cast<uint32_t>(__cvta_generic_to_shared(counts));
    for_rows(a, p, p.begin + thread, p.low < p.high ? p.end : 0, kThreads,
             [&](ListedRow& row, int32_t) { row.count<kFew>(a, p, counter); });
    __syncthreads();
    for (int b = thread; b < p.high - p.low; b += kThreads)
        if (counts[b] > 0) a.places[(int64_t{p.g} * a.capacity + p.low + b) * a.chunks + p.chunk] = counts[b];
}

/// Turns the counts of a list's chunks into where each chunk ends in the list.
__global__ void __launch_bounds__(kThreads) sum_chunks(ListArgs const a) {
    int64_t const list = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    if (list >= int64_t{a.kv_heads} * a.capacity) return;
    int const lane = threadIdx.x % 32;
    int32_t* const counts = a.places + list * a.chunks;
    int32_t carry = 0;
    for (int begin = 0; begin < a.chunks; begin += 32) {
        int const c = begin + lane;
        int32_t const sum = carry + warp_inclusive_scan(c < a.chunks ? counts[c] : 0, lane);
        if (c < a.chunks) counts[c] = sum;
        carry = __shfl_sync(kAllLanes, sum, 31);
    }
    if (lane == 0) a.totals[list] = carry;
}

__global__ void __launch_bounds__(kScanThreads) sum_lists(ListArgs const a) {
    int64_t const g = blockIdx.x;
    int32_t const* const totals = a.totals + g * a.capacity;
    exclusive_scan(
        a.capacity, [&](int b) { return totals[b]; }, a.list_begin + g * (a.capacity + 1));
}

/// Each warp takes a run of the part's rows: it counts what they chose, learns from the counts of the warps before it
/// where its entries of every list begin, and writes them, 32 rows at a time. Masks of the rows that chose a block tell
/// each row how many come before it.
template <bool kFew>
__global__ void __launch_bounds__(kThreads) fill_lists(ListArgs const a) {
    extern __shared__ int32_t memory[];  // counts and masks [kWarps, high - low + kSpare]
    Part const p = part_of(a);
    int const thread = static_cast<int>(threadIdx.x), lane = thread % 32, width = p.high - p.low;
    if (width <= 0) return;
    int const stride = width + kSpare;
    for (int b = thread; b < 2 * kWarps * stride; b += kThreads) memory[b] = 0;
    __syncthreads();
    int32_t const run = ((p.end - p.begin + kThreads - 1) / kThreads) * 32;
    int32_t const begin = min(p.begin + thread / 32 * run, p.end), end = min(begin + run, p.end);
    // This warp's counters.
    uint32_t const next = static_cast<uint32_t>(__cvta_generic_to_shared(memory + thread / 32 * stride));
    uint32_t const masks = next + static_cast<uint32_t>(4 * kWarps * stride), spare = p.spare();
    for_rows(a, p, begin + lane, end, 32, [&](ListedRow& row, int32_t) { row.count<kFew>(a, p, next); });
    __syncthreads();
    for (int b = thread; b < width; b += kThreads) {
        int64_t const list = int64_t{p.g} * a.capacity + p.low + b;
        int32_t at = a.list_begin[list + p.g] + (p.chunk > 0 ? a.places[list * a.chunks + p.chunk - 1] : 0);
        for (int32_t* count = memory + b; count < memory + kWarps * stride; count += stride) {
            int32_t const entries = *count;
            *count = at;
            at += entries;
        }
    }
    __syncthreads();
    uint32_t* const list = a.list + p.g * a.list_stride;
    uint32_t const earlier_rows = (1u << lane) - 1;
    for_rows(a, p, begin + lane, end, 32, [&](ListedRow& row, int32_t at) {
        using Bytes = uint32_t const(&)[kBatch];
        using There = bool const(&)[kBatch];
        row.for_batches<kFew>(a, p, [&](int, Bytes bytes, There) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) mark(masks + bytes[i], 1u << lane);
        });
        __syncwarp();
        uint64_t last = 0;  // slots whose block no later row of these chose
        row.for_batches<kFew>(a, p, [&](int from, Bytes bytes, There there) {
            uint32_t rows[kBatch];
            int32_t place[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                rows[i] = static_cast<uint32_t>(load_counter(masks + bytes[i]));
                place[i] = load_counter(next + bytes[i]);
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                store_entry(list + place[i] + __popc(rows[i] & earlier_rows), there[i],
                            static_cast<uint32_t>(at) << 6 | static_cast<uint32_t>(from + i));
                last |= uint64_t{there[i] && rows[i] >> lane == 1} << (from + i);
            }
        });
        __syncwarp();
        row.for_batches<kFew>(a, p, [&](int from, Bytes bytes, There) {
            uint32_t mine[kBatch];
            int32_t end[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                mine[i] = last >> (from + i) & 1 ? bytes[i] : spare;
                end[i] = load_counter(next + mine[i]) + __popc(load_counter(masks + mine[i]));
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                store_counter(next + mine[i], end[i]);
                store_counter(masks + mine[i], 0);
            }
        });
        __syncwarp();
    });
}

__global__ void __launch_bounds__(kScanThreads) count_tiles(ListArgs const a) {
    int64_t const g = a.head + blockIdx.x;
    int32_t const* const ends = a.places + g * a.capacity * a.chunks;
    exclusive_scan(
        a.capacity,
        [&](int b) {
            int64_t const at = int64_t{b} * a.chunks;
            int32_t const before = a.chunk > 0 ? ends[at + a.chunk - 1] : 0;
            return (ends[at + a.end_chunk - 1] - before + a.row_tile - 1) / a.row_tile;
        },
        a.tiles + int64_t{blockIdx.x} * (a.capacity + 1));
}

ListArgs list_args(Stage const& stage, Wave const& wave) {
    MobaShape const& shape = stage.plan.shape;
    Scratch const& s = stage.scratch;
    auto const narrow = [](int64_t x) { return static_cast<int32_t>(x); };
    return {.chosen = stage.problem.chosen,
            .blocks = s.blocks,
            .block_of = s.block_of,
            .places = s.places,
            .totals = s.totals,
            .list_begin = s.list_begin,
            .list = s.list,
            .tiles = s.tiles,
            .list_stride = shape.places(),
            .queries = narrow(shape.queries),
            .query_begin = narrow(stage.problem.query_begin),
            .heads = narrow(shape.heads),
            .kv_heads = narrow(shape.kv_heads),
            .slots = narrow(shape.slots()),
            .capacity = narrow(stage.plan.blocks),
            .chunks = narrow(stage.plan.chunks),
            .chunk_queries = narrow(stage.plan.chunk_queries),
            .head = narrow(wave.head),
            .chunk = narrow(wave.chunk),
            .end_chunk = narrow(wave.chunk + wave.chunks),
            .row_tile = narrow(stage.plan.row_tile)};
}

}  // namespace

void build_lists(Stage const& stage) {
    ListArgs const args = list_args(stage, {});
    cudaStream_t const stream = stage.problem.stream;
    check_cuda(cudaMemsetAsync(args.places, 0, stage.plan.places.bytes, stream), "cudaMemsetAsync");
    int64_t const lists = int64_t{args.kv_heads} * args.capacity;
    int64_t const ranges = ceil_div(args.capacity, kRangeBlocks);
    size_t const counters = sizeof(int32_t) * static_cast<size_t>(std::min(args.capacity, kRangeBlocks) + kSpare);
    auto* const count = args.slots <= kBatch ? &count_entries<true> : &count_entries<false>;
    auto* const fill = args.slots <= kBatch ? &fill_lists<true> : &fill_lists<false>;
    launch({"count_entries", args.kv_heads, args.chunks, kThreads, counters, stream, ranges}, count, args);
    launch({"sum_chunks", ceil_div(lists, kWarps), 1, kThreads, 0, stream}, sum_chunks, args);
    launch({"sum_lists", args.kv_heads, 1, kScanThreads, 0, stream}, sum_lists, args);
    launch({"fill_lists", args.kv_heads, args.chunks, kThreads, 2 * kWarps * counters, stream, ranges}, fill, args);
}

void plan_tiles(Stage const& stage, Wave const& wave) {
    launch({"count_tiles", wave.heads, 1, kScanThreads, 0, stage.problem.stream}, count_tiles, list_args(stage, wave));
}

}  // namespace perigee::moba
