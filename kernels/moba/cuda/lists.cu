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
constexpr int kRangeBlocks = 2048;  // blocks whose counters a thread block holds
constexpr int kBatch = 4;           // choices that a thread has in flight

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

/// What a thread block counts or fills: places [begin, end) of a key/value head's part of the choice, those of one
/// chunk of queries, as far as they mean blocks [low, high).
struct Part {
    int32_t g, chunk, low, high;
    uint32_t begin, end;
};
__device__ Part part_of(ListArgs const& a) {
    Part p;
    p.g = static_cast<int32_t>(blockIdx.x);
    p.chunk = static_cast<int32_t>(blockIdx.y);
    int32_t const begin = p.chunk * a.chunk_queries, end = min(begin + a.chunk_queries, a.queries);
    auto const width = static_cast<uint32_t>(a.group() * a.slots);
    p.begin = static_cast<uint32_t>(begin) * width, p.end = static_cast<uint32_t>(end) * width;
    auto const range = static_cast<int32_t>(blockIdx.z) * kRangeBlocks;
    p.low = max(a.blocks[a.block_of[a.query_begin + begin]].first, range);
    p.high = min(a.block_of[a.query_begin + end - 1], range + kRangeBlocks);
    return p;
}

/// The block (of all documents) that place `i` of a key/value head means, or -1: the place is empty, or its block lies
/// outside the query's past or outside the part.
__device__ __forceinline__ int32_t block_at(ListArgs const& a, Part const& p, uint32_t i) {
    uint32_t const row = i / a.slots;
    int64_t const query = row / a.group();
    int32_t const choice = a.chosen[(query * (a.kv_heads - 1) + p.g) * a.group() * a.slots + i];
    int32_t const own = a.block_of[a.query_begin + query], first = a.blocks[own].first, block = first + choice;
    return choice >= 0 && choice < own - first && block >= p.low && block < p.high ? block : -1;
}

/// Calls f(i, block) for the places begin, begin + stride, ... that are below `end` rounded up to whole warps; those
/// beyond it are empty.
template <class F>
__device__ __forceinline__ void for_places(ListArgs const& a, Part const& p, uint32_t begin, uint32_t end,
                                           uint32_t stride, F f) {
    uint32_t const lane = threadIdx.x % 32;
    for (uint32_t at = begin; at < end; at += kBatch * stride) {
        int32_t block[kBatch];
#pragma unroll
        for (uint32_t n = 0; n < kBatch; ++n) {
            uint32_t const i = at + n * stride + lane;
            block[n] = i < end ? block_at(a, p, i) : -1;
        }
#pragma unroll
        for (uint32_t n = 0; n < kBatch; ++n) f(at + n * stride + lane, block[n]);
    }
}

__global__ void __launch_bounds__(kThreads) count_entries(ListArgs const a) {
    extern __shared__ int32_t counts[];
    Part const p = part_of(a);
    int const thread = static_cast<int>(threadIdx.x);
    for (int b = thread; b < p.high - p.low; b += kThreads) counts[b] = 0;
    __syncthreads();
    for_places(a, p, p.begin + thread / 32 * 32, p.low < p.high ? p.end : 0, kThreads, [&](uint32_t, int32_t block) {
        if (block >= 0) atomicAdd(&counts[block - p.low], 1);
    });
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

/// Each warp takes a run of the part's places: it counts them, learns from the counts of the warps before it where its
/// entries of every list begin, and writes them in order.
__global__ void __launch_bounds__(kThreads) fill_lists(ListArgs const a) {
    extern __shared__ int32_t counters[];  // [kWarps, high - low]
    Part const p = part_of(a);
    int const thread = static_cast<int>(threadIdx.x), lane = thread % 32, width = p.high - p.low;
    if (width <= 0) return;
    for (int b = thread; b < kWarps * width; b += kThreads) counters[b] = 0;
    __syncthreads();
    uint32_t const run = ((p.end - p.begin + kThreads - 1) / kThreads) * 32;
    uint32_t const begin = min(p.begin + static_cast<uint32_t>(thread) / 32 * run, p.end),
                   end = min(begin + run, p.end);
    int32_t* const next = counters + thread / 32 * width - p.low;  // of this warp, by block
    for_places(a, p, begin, end, 32, [&](uint32_t, int32_t block) {
        if (block >= 0) atomicAdd(&next[block], 1);
    });
    __syncthreads();
    for (int b = thread; b < width; b += kThreads) {
        int64_t const list = int64_t{p.g} * a.capacity + p.low + b;
        int32_t at = a.list_begin[list + p.g] + (p.chunk > 0 ? a.places[list * a.chunks + p.chunk - 1] : 0);
        for (int32_t* count = counters + b; count < counters + kWarps * width; count += width) {
            int32_t const entries = *count;
            *count = at;
            at += entries;
        }
    }
    __syncthreads();
    uint32_t* const list = a.list + p.g * a.list_stride;
    for_places(a, p, begin, end, 32, [&](uint32_t i, int32_t block) {
        unsigned const same = __match_any_sync(kAllLanes, block);
        int32_t const at = block >= 0 ? next[block] + __popc(same & ((1u << lane) - 1)) : 0;
        __syncwarp();
        if (block >= 0 && same >> lane == 1) next[block] = at + 1;  // the last of its equals
        __syncwarp();
        if (block >= 0) list[at] = i / a.slots << 6 | i % a.slots;
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
    size_t const counters = sizeof(int32_t) * static_cast<size_t>(std::min(args.capacity, kRangeBlocks));
    launch({"count_entries", args.kv_heads, args.chunks, kThreads, counters, stream, ranges}, count_entries, args);
    launch({"sum_chunks", ceil_div(lists, kWarps), 1, kThreads, 0, stream}, sum_chunks, args);
    launch({"sum_lists", args.kv_heads, 1, kScanThreads, 0, stream}, sum_lists, args);
    launch({"fill_lists", args.kv_heads, args.chunks, kThreads, kWarps * counters, stream, ranges}, fill_lists, args);
}

void plan_tiles(Stage const& stage, Wave const& wave) {
    launch({"count_tiles", wave.heads, 1, kScanThreads, 0, stage.problem.stream}, count_tiles, list_args(stage, wave));
}

}  // namespace perigee::moba
