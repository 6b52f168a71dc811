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
constexpr int kRangeBlocks = 1024;  // blocks whose counters a thread block holds
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

/// What a thread block counts or fills: rows [begin, end) of a key/value head, those of one chunk of queries, as far as
/// they chose blocks [low, high).
struct Part {
    int32_t g, chunk, begin, end, low, high;
};
__device__ Part part_of(ListArgs const& a) {
    Part p;
    p.g = static_cast<int32_t>(blockIdx.x);
    p.chunk = static_cast<int32_t>(blockIdx.y);
    int32_t const begin = p.chunk * a.chunk_queries, end = min(begin + a.chunk_queries, a.queries);
    p.begin = begin * a.group(), p.end = end * a.group();
    auto const range = static_cast<int32_t>(blockIdx.z) * kRangeBlocks;
    p.low = max(a.blocks[a.block_of[a.query_begin + begin]].first, range);
    p.high = min(a.block_of[a.query_begin + end - 1], range + kRangeBlocks);
    return p;
}

/// A row of a part: where its choice is, and which of the chosen blocks count.
struct ListedRow {
    int32_t const* choice;
    int32_t first;  ///< of the row's document
    int32_t low;    ///< blocks of the document that count, [low, high): in the row's past and in the part's range
    int32_t high;

    /// Calls f(slot, block) for the slots [from, from + kBatch) that count, blocks counted over all documents.
    template <class F>
    __device__ __forceinline__ void for_blocks(int32_t const (&batch)[kBatch], int from, F f) const {
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
            if (batch[i] >= low && batch[i] < high) f(from + i, first + batch[i]);
    }
    __device__ __forceinline__ void load(int32_t (&batch)[kBatch], int from, int slots) const {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) batch[i] = from + i < slots ? choice[from + i] : -1;
    }
    template <class F>
    __device__ __forceinline__ void for_all_blocks(int slots, F f) const {
        for (int from = 0; from < slots; from += kBatch) {
            int32_t batch[kBatch];
            load(batch, from, slots);
            for_blocks(batch, from, f);
        }
    }
};
/// None of whose blocks count where there is no such row.
__device__ __forceinline__ ListedRow listed_row(ListArgs const& a, Part const& p, int32_t row) {
    row = min(row, p.end);
    bool const there = row < p.end;
    int32_t const query = (there ? row : p.begin) / a.group(), own = a.block_of[a.query_begin + query];
    int32_t const first = a.blocks[own].first;
    int64_t const at = int64_t{there ? row : p.begin} + int64_t{query} * (a.heads - a.group()) + p.g * a.group();
    return {a.chosen + at * a.slots, first, max(p.low - first, 0), there ? min(own, p.high) - first : 0};
}

__global__ void __launch_bounds__(kThreads) count_entries(ListArgs const a) {
    extern __shared__ int32_t counts[];
    Part const p = part_of(a);
    int const thread = static_cast<int>(threadIdx.x);
    for (int b = thread; b < p.high - p.low; b += kThreads) counts[b] = 0;
    __syncthreads();
    for (int32_t at = p.low < p.high ? p.begin + thread : p.end; at < p.end; at += kThreads) {
        listed_row(a, p, at).for_all_blocks(a.slots, [&](int, int32_t block) { atomicAdd(&counts[block - p.low], 1); });
    }
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
__global__ void __launch_bounds__(kThreads) fill_lists(ListArgs const a) {
    extern __shared__ int32_t memory[];  // counts and masks [kWarps, high - low]
    Part const p = part_of(a);
    int const thread = static_cast<int>(threadIdx.x), lane = thread % 32, width = p.high - p.low;
    if (width <= 0) return;
    for (int b = thread; b < 2 * kWarps * width; b += kThreads) memory[b] = 0;
    __syncthreads();
    int32_t const run = ((p.end - p.begin + kThreads - 1) / kThreads) * 32;
    int32_t const begin = min(p.begin + thread / 32 * run, p.end), end = min(begin + run, p.end);
    int32_t* const next = memory + thread / 32 * width - p.low;  // of this warp, by block
    auto* const mask = reinterpret_cast<uint32_t*>(next + kWarps * width);
    for (int32_t at = begin + lane; at < end; at += 32) {
        listed_row(a, p, at).for_all_blocks(a.slots, [&](int, int32_t block) { atomicAdd(&next[block], 1); });
    }
    __syncthreads();
    for (int b = thread; b < width; b += kThreads) {
        int64_t const list = int64_t{p.g} * a.capacity + p.low + b;
        int32_t at = a.list_begin[list + p.g] + (p.chunk > 0 ? a.places[list * a.chunks + p.chunk - 1] : 0);
        for (int32_t* count = memory + b; count < memory + kWarps * width; count += width) {
            int32_t const entries = *count;
            *count = at;
            at += entries;
        }
    }
    __syncthreads();
    uint32_t* const list = a.list + p.g * a.list_stride;
    for (int32_t from = begin; from < end; from += 32) {
        ListedRow const row = listed_row(a, p, from + lane < end ? from + lane : p.end);
        int32_t batch[kBatch];  // stays where one batch is all
        for (int first = 0; first < a.slots; first += kBatch) {
            row.load(batch, first, a.slots);
            row.for_blocks(batch, first, [&](int, int32_t block) { atomicOr(&mask[block], 1u << lane); });
        }
        __syncwarp();
        uint64_t last = 0;  // slots whose block no later row of these chose
        for (int first = 0; first < a.slots; first += kBatch) {
            if (a.slots > kBatch) row.load(batch, first, a.slots);
            row.for_blocks(batch, first, [&](int slot, int32_t block) {
                uint32_t const rows = mask[block];
                list[next[block] + __popc(rows & ((1u << lane) - 1))] =
                    static_cast<uint32_t>(from + lane) << 6 | static_cast<uint32_t>(slot);
                last |= uint64_t{rows >> lane == 1} << slot;
            });
        }
        __syncwarp();
        for (int first = 0; first < a.slots; first += kBatch) {
            if (a.slots > kBatch) row.load(batch, first, a.slots);
            row.for_blocks(batch, first, [&](int slot, int32_t block) {
                if ((last >> slot & 1) == 0) return;
                next[block] += __popc(mask[block]);
                mask[block] = 0;
            });
        }
        __syncwarp();
    }
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
    size_t const counters = sizeof(int32_t) * static_cast<size_t>(std::min(args.capacity, kRangeBlocks));
    launch({"count_entries", args.kv_heads, args.chunks, kThreads, counters, stream, ranges}, count_entries, args);
    launch({"sum_chunks", ceil_div(lists, kWarps), 1, kThreads, 0, stream}, sum_chunks, args);
    launch({"sum_lists", args.kv_heads, 1, kScanThreads, 0, stream}, sum_lists, args);
    launch({"fill_lists", args.kv_heads, args.chunks, kThreads, 2 * kWarps * counters, stream, ranges}, fill_lists,
           args);
}

void plan_tiles(Stage const& stage, Wave const& wave) {
    launch({"count_tiles", wave.heads, 1, kScanThreads, 0, stage.problem.stream}, count_tiles, list_args(stage, wave));
}

}  // namespace perigee::moba
